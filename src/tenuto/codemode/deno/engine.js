// The surface of the default engine, in a deno process without permissions.
//
// Stdin brings one JSON object per line: what to run, then answers of host functions and lines of
// input. Stdout is the line to the keeper. Over stderr our parent is asked for a line of input, and
// told that all is done. Of deno nothing is left to the user's code: what is used of it here is taken
// before that runs.
(Deno, parts, load, begun) => {
  'use strict';
  const TOLD = 3; // the exit code of a failure that was told; deno's own are told by nobody yet
  const LONGEST_MS = 2 ** 31 - 1;
  const NOTHING_LEFT =
    'the code waits for a promise that nothing can settle any more: ' +
    'no timer, no read of stdin and no call of a function is open';
  const KEPT = ['atob', 'btoa', 'console', 'DOMException', 'performance', 'queueMicrotask', 'structuredClone', 'TextDecoder', 'TextEncoder'];
  const LANGUAGE = [
    'AggregateError', 'Array', 'ArrayBuffer', 'AsyncDisposableStack', 'Atomics', 'BigInt', 'BigInt64Array',
    'BigUint64Array', 'Boolean', 'DataView', 'Date', 'DisposableStack', 'Error', 'EvalError', 'FinalizationRegistry',
    'Float16Array', 'Float32Array', 'Float64Array', 'Function', 'Infinity', 'Int16Array', 'Int32Array', 'Int8Array',
    'Intl', 'Iterator', 'JSON', 'Map', 'Math', 'NaN', 'Number', 'Object', 'Promise', 'Proxy', 'RangeError',
    'ReferenceError', 'Reflect', 'RegExp', 'Set', 'SharedArrayBuffer', 'String', 'SuppressedError', 'Symbol',
    'SyntaxError', 'Temporal', 'TypeError', 'URIError', 'Uint16Array', 'Uint32Array', 'Uint8Array',
    'Uint8ClampedArray', 'WeakMap', 'WeakRef', 'WeakSet', 'decodeURI', 'decodeURIComponent', 'encodeURI',
    'encodeURIComponent', 'escape', 'eval', 'globalThis', 'isFinite', 'isNaN', 'parseFloat', 'parseInt',
    'undefined', 'unescape',
  ]; // prettier-ignore

  const stdin = Deno.stdin;
  const readSync = stdin.readSync.bind(stdin);
  const read = stdin.read.bind(stdin);
  const writeSync = Deno.stdout.writeSync.bind(Deno.stdout);
  const askSync = Deno.stderr.writeSync.bind(Deno.stderr);
  const exit = Deno.exit.bind(Deno);
  const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
  const decode = TextDecoder.prototype.decode.bind(new TextDecoder());
  const { setTimeout: arm, clearTimeout: disarm, setImmediate: soon } = globalThis;
  const evaluate = eval; // under another name it runs in the global scope
  const listen = addEventListener.bind(globalThis);
  const indexOf = Uint8Array.prototype.indexOf;
  const copyWithin = Uint8Array.prototype.copyWithin;

  const kit = { __proto__: null };
  const handles = { __proto__: null };
  const tools = { __proto__: null };
  const uses = { __proto__: null };
  const request = encode('r');
  const finished = encode('e');
  let settled = false;
  let readers = 0;
  let calls = 0;
  let timers = 0;
  let pumping = false;
  let moves = [];
  let rows = 0;
  let starts;
  let source = '';

  // Lines in

  let held = begun.length > 0 ? begun : new Uint8Array(1 << 16);
  let size = begun.length;
  let seen = 0;
  const view = (from, count) => new kit.Uint8Array(kit.typedBuffer(held), kit.typedOffset(held) + from, count);
  const room = () => {
    const length = kit.typedLength(held);
    if (size === length) {
      const wider = new kit.Uint8Array(length * 2);
      kit.typedSet(wider, held);
      held = wider;
    }
    return view(size, kit.typedLength(held) - size);
  };
  /** Return the next whole line, or undefined when there is none yet. */
  const line = () => {
    const end = kit.apply(indexOf, view(0, size), [10, seen]);
    if (end < 0) {
      seen = size;
      return undefined;
    }
    const text = decode(view(0, end));
    kit.apply(copyWithin, held, [0, end + 1, size]);
    size -= end + 1;
    seen = 0;
    return text;
  };
  const lineSync = () => {
    for (;;) {
      const text = line();
      if (text !== undefined) return text;
      size += readSync(room()) ?? exit(125);
    }
  };

  const take = (text) => {
    const message = kit.parse(text);
    if (message.type === 'item') {
      readers--;
      if (readers > 0) askSync(request);
      kit.item(kit.stringify(message.line));
    } else if (message.type === 'empty') host.write('{"type":"reading"}');
    else if (message.type === 'come') {
      host.write('{"type":"read"}');
      askSync(request);
    } else if (kit.answer(text)) calls--;
    rest();
  };
  /** Once nothing is left to do, say so: to be killed is much quicker than to exit. */
  const rest = () => {
    if (settled && readers + calls + timers === 0) soon(() => soon(end));
  };
  const end = () => {
    if (readers + calls + timers > 0) return;
    sumUp();
    askSync(finished);
  };
  const leave = (code) => {
    sumUp();
    exit(code);
  };
  const tellUse = (name) => host.write(`{"type":"used","name":${kit.stringify(name)},"times":${uses[name]}}`);
  const sumUp = () => {
    for (const name in uses) tellUse(name);
  };
  const received = (count) => {
    if (count === null) exit(125); // nobody is there any more
    size += count;
    for (let text = line(); text !== undefined; text = line()) take(text);
    pumping = false;
    pump();
  };
  /** Read as long as something is to come; with nothing to come, the process ends by itself. */
  const pump = () => {
    if (pumping || readers + calls === 0) return;
    pumping = true;
    kit.then(read(room()), received, () => exit(125));
  };

  // What the surface calls

  const host = {
    __proto__: null,
    write(text) {
      let bytes = encode(`${text}\n`);
      while (kit.typedLength(bytes) > 0) {
        const count = writeSync(bytes);
        bytes = new kit.Uint8Array(kit.typedBuffer(bytes), kit.typedOffset(bytes) + count, kit.typedLength(bytes) - count);
      }
    },
    timer(id, ms) {
      const wait = ms > LONGEST_MS ? LONGEST_MS : ms;
      timers++;
      handles[id] = arm(() => {
        delete handles[id];
        timers--;
        if (ms > wait) host.timer(id, ms - wait);
        else kit.fire(id);
        rest();
      }, wait);
    },
    cancel(id) {
      if (handles[id] === undefined) return;
      disarm(handles[id]);
      delete handles[id];
      timers--;
      rest();
    },
    reading() {
      readers++;
      if (readers > 1) return;
      askSync(request);
      pump();
    },
    calling(text) {
      calls++;
      host.write(text);
      pump();
    },
    /** Find a column of the code for one of the text that was made of it. */
    column(row, column) {
      if (row > rows) return 0; // what was put around the code
      if (moves.length === 0) return column;
      starts ??= lineStarts();
      const start = starts[row - 1];
      if (start === undefined) return column;
      const here = start + column - 1;
      let found = column;
      for (let at = 0; at < moves.length; at++) {
        const place = moves[at][0];
        const removed = moves[at][1];
        const put = moves[at][2];
        if (place >= start && place < here) found += removed - (put < here - place ? put : here - place);
      }
      return found < 1 ? 1 : found;
    },
    done(code) {
      if (code !== 0) leave(code === 1 ? TOLD : code);
      settled = true;
      rest();
    },
    cell: () => 0, // there are no sessions here
    row: (row) => row,
    full: () => false,
    room() {},
    tool(name) {
      const { text, flaw } = tools[name];
      if (flaw !== undefined) return flaw;
      try {
        kit.made = evaluate(`${text}\n//# sourceURL=tool:${name}`);
      } catch (error) {
        kit.flawed = error;
      }
      return undefined;
    },
    /** Tell of a tool's first use and then ever more rarely: the end tells the sum. */
    used(name) {
      const times = (uses[name] = (uses[name] ?? 0) + 1);
      if ((times & (times - 1)) === 0) tellUse(name);
    },
  };

  const lineStarts = () => {
    const found = [0];
    for (let at = 0; at < source.length; at++) {
      const code = kit.charCodeAt(source, at);
      if (code === 13 && kit.charCodeAt(source, at + 1) === 10) continue;
      if (code === 10 || code === 13 || code === 0x2028 || code === 0x2029) kit.push(found, at + 1);
    }
    return found;
  };

  // The surface

  const dress = () => {
    const own = globalThis;
    class InternalError extends Error {}
    own.InternalError = InternalError; // the other engine's; nothing here throws it
    for (const part of parts) load(part)(kit, host);
    kit.userNames = ['<input>', 'data:application/typescript'];
    kit.ownNames = ['tenuto:', 'ext:', 'data:text/javascript'];
    kit.shownElse = (line) => {
      if (kit.indexOf(line, '(tool:') < 0) return line;
      const whole = kit.replaceAll(kit.replaceAll(line, '(tool:', '(tool '), ', <anonymous>:', ':');
      const named = kit.replaceAll(whole, ' Object.eval [as call] (', ' eval (');
      return kit.replaceAll(named, ' eval (', ' <anonymous> (');
    };
    const isShort = kit.isOutOfMemory;
    kit.isOutOfMemory = (error) => isShort(error) || isFailedAllocation(error);
    const { now } = kit;
    const performance = { __proto__: Object.prototype };
    kit.provide('now', () => now(), performance);
    kit.provide('timeOrigin', own.performance.timeOrigin, performance);
    kit.provide('performance', performance);
    const allowed = new Set([...LANGUAGE, ...KEPT, ...provided]);
    for (const name of Object.getOwnPropertyNames(own)) if (!allowed.has(name)) delete own[name];
    listen('unhandledrejection', (event) => {
      event.preventDefault();
      kit.fail(event.reason);
    });
    listen('error', (event) => {
      event.preventDefault();
      kit.fail(event.error);
    });
    listen('beforeunload', () => {
      if (settled) leave(0);
      const error = new kit.Error(NOTHING_LEFT);
      error.stack = '';
      kit.fail(error);
    });
  };
  const provided = ['clearImmediate', 'clearInterval', 'clearTimeout', 'readStdin', 'setImmediate', 'setInterval', 'setTimeout'];
  const { get: messageOf } = Object.getOwnPropertyDescriptor(DOMException.prototype, 'message');
  const isFailedAllocation = (error) => {
    const text = kit.descriptor(error, 'message')?.value;
    if (error instanceof kit.RangeError) return text === 'Array buffer allocation failed';
    try {
      return kit.apply(messageOf, error, []) === 'Data cannot be cloned, out of memory.';
    } catch {
      return false; // no DOMException
    }
  };

  const start = () => {
    const job = kit.parse(lineSync());
    moves = job.moves;
    rows = job.rows;
    source = job.source ?? job.text;
    kit.equip(job.inputs, job.functions);
    for (let at = 0; at < job.tools.length; at++) tools[job.tools[at].name] = job.tools[at];
    kit.tools(kit.stringify(job.tools));
    // A module is imported by a line that is not the user's.
    kit.run(`${job.text}\n//# sourceURL=${job.source === null ? '<input>' : 'tenuto:module'}`);
    running = true;
  };

  // V8 tells where a mistake in a script is to its debugger only, but in a module to everybody. This
  // one cannot run: it ends with a mistake of our own.
  const locate = (error) => {
    const found = (other) => {
      const places = kit.split(kit.String(other.stack), ':');
      const row = kit.Number(places[places.length - 2]);
      const column = kit.parseInt(places[places.length - 1]);
      error.stack = row <= lineStarts().length ? `    at <input>:${row}:${column}` : '';
      fail(error);
    };
    kit.then(importText(`data:text/javascript;base64,${kit.toBase64(encode(`${source}\n}}}}`))}`), found, found);
  };
  const isMistake = (error) =>
    error instanceof kit.SyntaxError && kit.indexOf(kit.String(error.stack), '<input>') < 0 && !running;

  dress();
  kit.SyntaxError = SyntaxError;
  kit.parseInt = parseInt;
  const importText = load(['module', '(url) => import(url)']);
  const { fail } = kit;
  let running = false;
  kit.fail = (error) => {
    if (isMistake(error)) locate(error);
    else fail(error);
  };
  // Later: deno first does what it does only once. The thread then waits in a read until a job is there.
  arm(() => soon(start), 1);
};
