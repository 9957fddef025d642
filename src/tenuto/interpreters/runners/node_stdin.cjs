'use strict';
// readStdin(): the next line of stdin. Stdin is not touched before the first call, and keeps the
// process alive only while somebody waits for a line.

const { send } = require('./node_channel.cjs');

const lines = [];
const readers = [];
let partial = '';
let started = false;
let ended = false;

/** Read, and live for it; or rest. A file has no handle to let go of: it ends by itself. */
function wake() {
  process.stdin.ref?.();
  process.stdin.resume();
}

function rest() {
  process.stdin.pause();
  process.stdin.unref?.();
}

/** Serve the readers in order, then read on or rest. */
function serve() {
  const waited = readers.length > 0;
  while (readers.length > 0 && (lines.length > 0 || ended)) readers.shift()(lines.shift() ?? null);
  if (readers.length > 0) {
    wake();
    return;
  }
  if (waited) send({ type: 'read' });
  if (started && !ended) rest();
}

function take(text) {
  const parts = (partial + text).split('\n');
  partial = parts.pop();
  lines.push(...parts);
  if (parts.length > 0) serve();
}

function end() {
  if (ended) return;
  ended = true;
  if (partial !== '') lines.push(partial);
  partial = '';
  serve();
}

function start() {
  started = true;
  process.stdin.setEncoding('utf8');
  process.stdin.on('data', take).on('end', end).on('close', end).on('error', end);
}

/** Promise of the next line without its newline, or null at the end of stdin. */
function readStdin() {
  if (lines.length > 0) return Promise.resolve(lines.shift());
  if (ended) return Promise.resolve(null);
  return new Promise((resolve) => {
    readers.push(resolve);
    if (readers.length > 1) return;
    send({ type: 'reading' });
    if (!started) start();
    wake();
  });
}

module.exports = { readStdin };
