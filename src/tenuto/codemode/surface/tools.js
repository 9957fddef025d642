// Composed tools as functions: `await tools.greet({name: 'Ada'})`. Their code runs here, in the same
// context, each call in a function of its own that has its input under the name `inputs`.
//
// Python gives `host.tool(name)`, which has the tool's code as kit.made or the reason as kit.flawed,
// and `host.used(name)`.
(kit, host) => {
  'use strict';
  const DEPTH_MAX = 32;
  const { TypeError, RangeError, ReferenceError } = globalThis;
  const withResolvers = Promise.withResolvers.bind(Promise);
  const SyntaxError = globalThis.SyntaxError;
  const Proxy = globalThis.Proxy;
  let tools = { __proto__: null };
  let names = [];

  const fault = (tool, text) => {
    const error = new TypeError(`${tool.name}: ${text}. Valid parameters: ${tool.parameters}`);
    kit.provide('name', 'ToolArgumentError', error);
    error.detail = { parameters: tool.schema };
    return error;
  };

  /** The input of a call: one object, or values in the order of the schema's properties. */
  const inputOf = (tool, args) => {
    const copy = kit.decode(kit.parse(kit.encode(args))); // what is checked is what is used
    if (copy.length === 1 && typeof copy[0] === 'object' && copy[0] !== null && kit.classOf(copy[0]) === '') return copy[0];
    const properties = kit.descriptor(tool.schema, 'properties')?.value ?? {};
    const keys = kit.ownKeys(properties);
    if (copy.length > keys.length) throw fault(tool, `it takes one object, and ${copy.length} arguments were given`);
    const input = {};
    for (let at = 0; at < copy.length; at++) {
      if (copy[at] === undefined) continue;
      kit.defineProperty(input, keys[at], {
        __proto__: null, value: copy[at], writable: true, enumerable: true, configurable: true,
      }); // prettier-ignore
    }
    return input;
  };

  const load = (tool) => {
    kit.made = kit.flawed = undefined;
    const message = host.tool(tool.name);
    const { made, flawed } = kit;
    kit.made = kit.flawed = undefined;
    if (typeof message === 'string') throw new SyntaxError(`tool ${tool.name}: ${message}`);
    if (typeof made !== 'function') throw flawed ?? new SyntaxError(`tool ${tool.name}: its code ends before its end`);
    tool.call = made;
  };

  const invoke = (tool, args, depth) => {
    const { promise, resolve, reject } = withResolvers();
    try {
      if (depth > DEPTH_MAX) throw new RangeError(`tools call each other more than ${DEPTH_MAX} deep`);
      const input = inputOf(tool, args);
      const faults = kit.check(tool.schema, input);
      if (faults.length > 0) throw fault(tool, kit.join(faults, '; '));
      if (tool.call === undefined) load(tool);
      host.used(tool.name);
      resolve(tool.call(input, at(depth + 1)));
    } catch (error) {
      reject(error);
    }
    return promise;
  };

  // What languages and libraries look for on any object, to find that it is not there.
  const asked = { __proto__: null, then: 1, toJSON: 1, constructor: 1, toString: 1, valueOf: 1, length: 1 };
  const handler = {
    __proto__: null,
    get(target, name) {
      const own = kit.descriptor(target, name);
      if (own !== undefined) return own.value;
      if (typeof name === 'symbol' || asked[name] === 1) return undefined;
      const there = names.length > 0 ? `there are: ${kit.join(names, ', ')}` : 'there are none';
      throw new ReferenceError(`there is no composed tool ${name}; ${there}`);
    },
  };
  const levels = { __proto__: null };
  /** The tools as they are seen at a depth of calls: each level counts on. */
  const at = (depth) => {
    if (levels[depth] !== undefined) return levels[depth];
    const space = { __proto__: null };
    for (let number = 0; number < names.length; number++) {
      const tool = tools[names[number]];
      const call = { [tool.name]: (...args) => invoke(tool, args, depth) }[tool.name];
      kit.defineProperty(space, tool.name, { __proto__: null, value: call, enumerable: true, writable: true, configurable: true });
    }
    levels[depth] = new Proxy(space, handler);
    return levels[depth];
  };

  /** Take the tools, as JSON: name, schema, and the parameters in words. */
  kit.tools = (text) => {
    const given = kit.parse(text);
    tools = { __proto__: null };
    names = [];
    const depths = kit.ownKeys(levels);
    for (let number = 0; number < depths.length; number++) delete levels[depths[number]];
    for (let number = 0; number < given.length; number++) {
      const { name, schema, parameters } = given[number];
      tools[name] = { __proto__: null, name, schema, parameters, call: undefined };
      kit.push(names, name);
    }
    kit.provide('tools', at(1));
  };
};
