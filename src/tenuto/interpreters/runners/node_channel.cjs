'use strict';
// This process's end of the channel: the code comes in first, then messages go out.

const fs = require('fs');
const { inspect, types } = require('util');

const MESSAGE_MAX = 16 * 1024 * 1024;
const TEXT_MAX = 4096;
const DEPTH_MAX = 200; // readers of JSON bound the nesting

let descriptor = -1;
let identity = null;

function look() {
  try {
    const { dev, ino } = fs.fstatSync(descriptor);
    return `${dev}:${ino}`;
  } catch {
    return null;
  }
}

/** Call `work` until the descriptor is ready: its other end may have made it non-blocking. */
function patiently(work) {
  for (;;) {
    try {
      return work();
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

function receive(size) {
  const buffer = Buffer.allocUnsafe(size);
  let done = 0;
  while (done < size) {
    const count = patiently(() => fs.readSync(descriptor, buffer, done, size - done, null));
    if (count === 0) throw new Error('the channel closed before the code arrived');
    done += count;
  }
  return buffer;
}

/** Take the channel from the environment and return the code. */
function open() {
  const name = process.env.TENUTO_CHANNEL;
  delete process.env.TENUTO_CHANNEL;
  if (!/^\d+$/.test(name ?? '')) throw new Error('TENUTO_CHANNEL names no descriptor');
  descriptor = Number(name);
  identity = look();
  return receive(receive(4).readUInt32LE(0)).toString('utf8');
}

/** Send one message if anyone is there; the program goes on in any case. */
function send(message) {
  // The program may have closed our descriptor and opened its own under the same number.
  if (identity === null || look() !== identity) return;
  let line = Buffer.from(JSON.stringify(message) + '\n');
  if (line.length > MESSAGE_MAX) {
    const repr = `value too large (${line.length} bytes): print it or write it to a file instead`;
    line = Buffer.from(JSON.stringify({ type: 'value', repr }) + '\n');
  }
  try {
    for (let done = 0; done < line.length; ) {
      done += patiently(() => fs.writeSync(descriptor, line, done));
    }
  } catch {
    identity = null; // nobody listens any more
  }
}

/** Whether JSON reads back as the very same value, in Python too. */
function isExact(value, depth = 0) {
  switch (typeof value) {
    case 'string':
      return value.isWellFormed();
    case 'boolean':
      return true;
    case 'number':
      if (!Number.isFinite(value) || Object.is(value, -0)) return false;
      // From 1e21 on, JSON.stringify writes an exponent, and so a float.
      return Number.isSafeInteger(value) || !Number.isInteger(value) || Math.abs(value) >= 1e21;
    case 'object':
      if (value === null) return true;
      return depth < DEPTH_MAX && !types.isProxy(value) && isPlain(value, depth);
    default:
      return false;
  }
}

function isPlain(value, depth) {
  const isArray = Array.isArray(value);
  const prototype = Object.getPrototypeOf(value);
  if (isArray ? prototype !== Array.prototype : prototype !== Object.prototype && prototype !== null) return false;
  const keys = Reflect.ownKeys(value);
  if (isArray && keys.length !== value.length + 1) return false; // holes, or names beside `length`
  for (const key of keys) {
    if (isArray && key === 'length') continue;
    const property = Object.getOwnPropertyDescriptor(value, key);
    if (typeof key === 'symbol' || !key.isWellFormed() || !property.enumerable || !('value' in property)) return false;
    if (!isExact(property.value, depth + 1)) return false;
  }
  return true;
}

function sendValue(value) {
  if (value === undefined) return;
  if (isExact(value)) {
    send({ type: 'value', json: value });
    return;
  }
  let repr;
  try {
    repr = inspect(value);
  } catch (error) {
    repr = `<${typeof value}: inspect() threw ${error?.name}>`;
  }
  send({ type: 'value', repr: repr.toWellFormed() });
}

function sendRaised(name, message, line) {
  const bytes = Buffer.from(String(message).toWellFormed());
  // A character cut in two at the end decodes to one replacement sign.
  const text = bytes.length > TEXT_MAX ? bytes.subarray(0, TEXT_MAX).toString().replace(/\ufffd$/, '') : bytes.toString();
  send({ type: 'raised', name: String(name).toWellFormed(), message: text, ...(line ? { line } : {}) });
}

module.exports = { open, send, sendRaised, sendValue };
