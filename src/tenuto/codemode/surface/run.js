// Running the user's code: timers, stdin, host functions, and how it ends.
//
// Python gives `host`: write(line), timer(id, ms), cancel(id), reading(), calling(line),
// column(line, column), cell(line), row(line), done(code), full() and room(). They take text and numbers only, and never throw. Python calls back what `kit` has below.
(kit, host) => {
  'use strict';
  const VALUE_MAX = 16 * 1024 * 1024;
  const ARGUMENTS_MAX = 16 * 1024 * 1024;
  const CALLS_MAX = 1000;
  const FLYING_MAX = 16 * 1024 * 1024; // the keeper ends us at four times as much, in bytes
  const ENDED_WELL = 0;
  const ENDED_BADLY = 1;
  const OUT_OF_MEMORY = 2;
  const { provide, TypeError, RangeError } = kit;
  const evaluate = eval; // under another name it runs in the global scope
  const resolved = Promise.resolve.bind(Promise);
  const withResolvers = Promise.withResolvers.bind(Promise);
  // A long text that was put together is kept in pieces, which the bridge to Python does not know.
  const whole = (text) => (text.length < 256 ? text : kit.join([text], ''));
  kit.write = (line) => host.write(whole(line));

  // The end

  kit.fail = (error) => {
    host.room(); // even to see what the error is takes some
    // Where there is no room for the error itself, the engine throws null.
    const memory = kit.isOutOfMemory(error) || (error === null && host.full());
    try {
      const raised = kit.raised(error);
      kit.write(`{"type":"raised",${raised.fields}}`);
      kit.log('error', raised.text);
    } catch {
      // There is not even the room, or the stack, to say what it was.
    }
    host.done(memory ? OUT_OF_MEMORY : ENDED_BADLY);
  };

  const finish = (value) => {
    try {
      if (value !== undefined) kit.write(valueMessage(value));
    } catch (error) {
      kit.fail(error);
      return;
    }
    host.done(ENDED_WELL);
  };

  const valueMessage = (value) => {
    let json;
    try {
      json = kit.exactJson(value);
    } catch (error) {
      if (kit.isOutOfMemory(error) || error === null) throw error;
    }
    let field = json;
    let name = 'json';
    if (json === undefined) {
      name = 'repr';
      field = kit.stringify(kit.toWellFormed(shown(value)));
    }
    if (field.length > VALUE_MAX) {
      name = 'repr';
      field = kit.stringify(`value too large (${field.length} characters): return less of it, or log it`);
    }
    return `{"type":"value","${name}":${field}}`;
  };
  const shown = (value) => {
    try {
      return kit.inspect(value, 4);
    } catch (error) {
      if (kit.isOutOfMemory(error) || error === null) throw error;
      return `<a value that cannot be shown: ${kit.errorHead(error)}>`;
    }
  };

  /** Run a piece of code; what its last expression gives, or the promise of it, is its value. */
  kit.run = (text) => {
    try {
      kit.then(resolved(evaluate(text)), finish, kit.fail);
    } catch (error) {
      kit.fail(error);
    }
  };

  const rejections = new kit.Map();
  /** Told by the engine: a promise was rejected with nobody to take it, or somebody takes it now. */
  kit.rejected = (promise, reason, taken) => {
    if (taken) kit.mapDelete(rejections, promise);
    else kit.mapSet(rejections, promise, reason);
  };
  /** Fail with the first rejection that nobody has taken by now, if there is one. */
  kit.settle = () => {
    if (kit.mapSize(rejections) === 0) return;
    let first = true;
    kit.mapEach(rejections, (reason) => {
      if (first) kit.fail(reason);
      first = false;
    });
    forget();
  };
  const forget = () => kit.mapEach(rejections, (_, promise) => kit.mapDelete(rejections, promise));

  // Timers

  const timers = { __proto__: null };
  let lastTimer = 0;
  const arm = (name, call, ms, every, args) => {
    if (typeof call !== 'function') throw new TypeError(`${name} needs a function, not ${kit.inspect(call, 0)}`);
    let wait = kit.Number(ms);
    if (!(wait >= 1)) wait = name === 'setImmediate' ? 0 : 1;
    if (wait > 1e15) wait = 1e15;
    const id = ++lastTimer;
    timers[id] = { __proto__: null, call, args, wait, every };
    host.timer(id, wait);
    return id;
  };
  kit.fire = (id) => {
    const timer = timers[id];
    if (timer === undefined) return;
    if (!timer.every) delete timers[id];
    try {
      kit.apply(timer.call, undefined, timer.args);
    } catch (error) {
      kit.fail(error);
      return;
    }
    if (timer.every && timers[id] === timer) host.timer(id, timer.wait);
  };
  const clear = (id) => {
    const number = typeof id === 'number' ? id : kit.Number(id);
    if (timers[number] === undefined) return;
    delete timers[number];
    host.cancel(number);
  };
  provide('setTimeout', function setTimeout(call, ms, ...args) {
    return arm('setTimeout', call, ms, false, args);
  });
  provide('setInterval', function setInterval(call, ms, ...args) {
    return arm('setInterval', call, ms, true, args);
  });
  provide('setImmediate', function setImmediate(call, ...args) {
    return arm('setImmediate', call, 0, false, args);
  });
  provide('clearTimeout', function clearTimeout(id) {
    clear(id);
  });
  provide('clearInterval', function clearInterval(id) {
    clear(id);
  });
  provide('clearImmediate', function clearImmediate(id) {
    clear(id);
  });
  const soon = queueMicrotask;
  provide('queueMicrotask', function queueMicrotask(call) {
    if (typeof call !== 'function') throw new TypeError(`queueMicrotask needs a function, not ${kit.inspect(call, 0)}`);
    soon(() => {
      try {
        kit.apply(call, undefined, []);
      } catch (error) {
        kit.fail(error);
      }
    });
  });

  // Input

  const readers = { __proto__: null };
  let firstReader = 0;
  let lastReader = 0;
  /** Give the next line (as JSON) to whoever asked first. */
  kit.item = (text) => {
    const resolve = readers[firstReader];
    delete readers[firstReader++];
    resolve(kit.parse(text));
  };
  provide('readStdin', function readStdin() {
    const { promise, resolve } = withResolvers();
    readers[lastReader++] = resolve;
    host.reading();
    return promise;
  });

  // Host functions

  const allowed = { __proto__: null };
  const calls = { __proto__: null };
  const waiting = { __proto__: null };
  let firstWaiting = 0;
  let lastWaiting = 0;
  let lastCall = 0;
  let open = 0;
  let flying = 0; // signs of arguments that have no answer yet
  const fits = (call) => open === 0 || (open < CALLS_MAX && flying + call.args.length <= FLYING_MAX);
  const place = (call) => {
    const n = ++lastCall;
    calls[n] = call;
    open++;
    flying += call.args.length;
    host.calling(whole(`{"type":"call","n":${n},"name":${call.name},"args":${call.args}}`));
  };
  const request = (name, args) => {
    const { promise, resolve, reject } = withResolvers();
    const trace = new kit.Error(); // made here, so that it knows where the call stands
    try {
      if (!allowed[name]) throw new TypeError(`${name} was given to an earlier cell, not to this one: pass it again`);
      const text = kit.encode(args);
      if (text.length > ARGUMENTS_MAX) throw new RangeError(`the arguments of ${name} are larger than 16 MB`);
      const call = { __proto__: null, name: kit.stringify(name), args: text, resolve, reject, trace };
      if (fits(call) && firstWaiting === lastWaiting) place(call);
      else waiting[lastWaiting++] = call;
    } catch (error) {
      reject(error);
    }
    return promise;
  };
  kit.answer = (text) => {
    const answer = kit.parse(text);
    const call = answer.type === 'answer' ? calls[answer.n] : undefined;
    if (call === undefined) return false;
    delete calls[answer.n];
    open--;
    flying -= call.args.length;
    if (answer.ok) call.resolve(kit.decode(answer.value ?? null));
    else call.reject(hostError(call.trace, answer.error ?? {}));
    while (firstWaiting < lastWaiting && fits(waiting[firstWaiting])) {
      const next = waiting[firstWaiting];
      delete waiting[firstWaiting++];
      place(next);
    }
    return true;
  };
  const hostError = (error, told) => {
    provide('name', `${told.name ?? 'Error'}`, error);
    provide('message', `${told.message ?? ''}`, error);
    if (told.detail !== undefined && told.detail !== null) error.detail = kit.decode(told.detail);
    return error;
  };
  const define = (path) => {
    const names = kit.split(path, '.');
    let target = globalThis;
    for (let at = 0; at < names.length - 1; at++) {
      const own = kit.descriptor(target, names[at])?.value;
      if (typeof own === 'object' && own !== null) target = own;
      else {
        const inner = {};
        provide(names[at], inner, target);
        target = inner;
      }
    }
    const last = names[names.length - 1];
    const call = { [last]: (...args) => request(path, args) }[last];
    provide(last, call, target);
  };

  provide('inputs', {});
  /** What the user's code is given, as JSON: its inputs, and the names of host functions. */
  kit.equip = (inputs, functions) => {
    provide('inputs', kit.decode(kit.parse(inputs)));
    const names = kit.parse(functions);
    for (const name in allowed) delete allowed[name];
    for (let at = 0; at < names.length; at++) {
      allowed[names[at]] = true;
      define(names[at]);
    }
  };

  // Constants of a session. Inside of their cell they are plain globals; from its end on nobody assigns
  // to them, and a cell that declares the name again has it as a plain one again.

  const constants = { __proto__: null };
  const plain = (value) => ({ __proto__: null, value, writable: true, enumerable: true, configurable: true });
  /** Before a cell: the names that it declares, as JSON. */
  kit.declare = (text) => {
    const names = kit.parse(text);
    for (let at = 0; at < names.length; at++) {
      const name = names[at];
      const get = constants[name];
      delete constants[name];
      if (get !== undefined && kit.descriptor(globalThis, name)?.get === get) {
        kit.defineProperty(globalThis, name, plain(get()));
      }
    }
  };
  /** After a cell: the constants that it declared. Of a failed one, those that it came to. */
  kit.seal = (text, whole) => {
    const names = kit.parse(text);
    for (let at = 0; at < names.length; at++) {
      const name = names[at];
      const own = kit.descriptor(globalThis, name);
      if (own === undefined || !own.configurable || own.get !== undefined) continue;
      const { value } = own;
      if (!whole && value === undefined) continue;
      const get = () => value;
      const set = () => {
        throw new TypeError(`'${name}' is a constant of an earlier cell: declare it again to change it`);
      };
      constants[name] = get;
      kit.defineProperty(globalThis, name, { __proto__: null, get, set, enumerable: true, configurable: true });
    }
  };

  /** Before another cell of a session: what the one before left open is no affair of this one. */
  kit.renew = () => {
    forget();
    for (const id in timers) delete timers[id];
    for (const n in readers) delete readers[n];
    for (const n in calls) delete calls[n];
    for (const n in waiting) delete waiting[n];
    firstReader = lastReader = firstWaiting = lastWaiting = lastCall = open = 0;
  };
};
