// What the other files of the surface use of the language, taken before the user's code can change it.
// They avoid spread, for-of and array destructuring: those go through what the user can replace.
(kit) => {
  'use strict';
  const { apply, construct, ownKeys } = Reflect;
  const method = (f) => (self, a, b) => apply(f, self, [a, b]);
  const getter = (proto, name) => {
    const { get } = Object.getOwnPropertyDescriptor(proto, name);
    return (self) => apply(get, self, []);
  };

  kit.apply = apply;
  kit.construct = construct;
  kit.ownKeys = ownKeys;
  kit.defineProperty = Object.defineProperty;
  kit.getPrototypeOf = Object.getPrototypeOf;
  kit.descriptor = Object.getOwnPropertyDescriptor;
  kit.create = Object.create;
  kit.is = Object.is;
  kit.isArray = Array.isArray;
  kit.isInteger = Number.isInteger;
  kit.isSafeInteger = Number.isSafeInteger;
  kit.isFinite = Number.isFinite;
  kit.stringify = JSON.stringify;
  kit.parse = JSON.parse;
  kit.String = String;
  kit.Number = Number;
  kit.BigInt = BigInt;
  kit.Error = Error;
  kit.TypeError = TypeError;
  kit.RangeError = RangeError;
  kit.InternalError = InternalError;
  kit.DOMException = DOMException;
  kit.Promise = Promise;
  kit.Map = Map;
  kit.Set = Set;
  kit.Date = Date;
  kit.RegExp = RegExp;
  kit.Symbol = Symbol;
  kit.Uint8Array = Uint8Array;
  kit.ArrayBuffer = ArrayBuffer;
  kit.DataView = DataView;
  kit.objectPrototype = Object.prototype;
  kit.arrayPrototype = Array.prototype;
  kit.now = performance.now.bind(performance);

  kit.slice = method(String.prototype.slice);
  kit.split = method(String.prototype.split);
  kit.indexOf = method(String.prototype.indexOf);
  kit.repeat = method(String.prototype.repeat);
  kit.padEnd = method(String.prototype.padEnd);
  kit.charCodeAt = method(String.prototype.charCodeAt);
  kit.replaceAll = method(String.prototype.replaceAll);
  kit.toWellFormed = method(String.prototype.toWellFormed);
  kit.isWellFormed = method(String.prototype.isWellFormed);
  kit.startsWith = method(String.prototype.startsWith);
  kit.join = method(Array.prototype.join);
  kit.symbolText = method(Symbol.prototype.toString);
  kit.functionText = method(Function.prototype.toString);
  kit.regexpText = method(RegExp.prototype.toString);
  kit.dateTime = method(Date.prototype.getTime);
  kit.dateText = method(Date.prototype.toISOString);
  kit.bigintText = method(BigInt.prototype.toString);
  kit.numberOf = method(Number.prototype.valueOf);
  kit.stringOf = method(String.prototype.valueOf);
  kit.booleanOf = method(Boolean.prototype.valueOf);
  kit.bigintOf = method(BigInt.prototype.valueOf);
  kit.symbolOf = method(Symbol.prototype.valueOf);
  kit.mapGet = method(Map.prototype.get);
  kit.mapHas = method(Map.prototype.has);
  kit.mapSet = method(Map.prototype.set);
  kit.mapDelete = method(Map.prototype.delete);
  kit.mapEach = method(Map.prototype.forEach);
  kit.mapSize = getter(Map.prototype, 'size');
  kit.setHas = method(Set.prototype.has);
  kit.setAdd = method(Set.prototype.add);
  kit.setEach = method(Set.prototype.forEach);
  kit.setSize = getter(Set.prototype, 'size');
  kit.then = method(Promise.prototype.then);
  kit.fromCharCode = String.fromCharCode;

  const typed = Object.getPrototypeOf(Uint8Array.prototype);
  kit.typedName = getter(typed, Symbol.toStringTag);
  kit.typedLength = getter(typed, 'length');
  kit.typedBuffer = getter(typed, 'buffer');
  kit.typedOffset = getter(typed, 'byteOffset');
  kit.typedBytes = getter(typed, 'byteLength');
  kit.typedSet = method(typed.set);
  kit.bufferBytes = getter(ArrayBuffer.prototype, 'byteLength');
  kit.bufferSlice = method(ArrayBuffer.prototype.slice);
  kit.sharedBytes = getter(SharedArrayBuffer.prototype, 'byteLength');
  kit.viewBuffer = getter(DataView.prototype, 'buffer');
  kit.viewOffset = getter(DataView.prototype, 'byteOffset');
  kit.viewBytes = getter(DataView.prototype, 'byteLength');
  kit.weakMapHas = method(WeakMap.prototype.has);
  kit.weakSetHas = method(WeakSet.prototype.has);

  /** Whether a getter of a built-in class takes the value: it is one of its instances. */
  kit.takes = (probe, value) => {
    try {
      probe(value);
      return true;
    } catch {
      return false;
    }
  };
  const key = {};
  const probes = {
    __proto__: null,
    Map: kit.mapSize,
    Set: kit.setSize,
    Date: kit.dateTime,
    ArrayBuffer: kit.bufferBytes,
    SharedArrayBuffer: kit.sharedBytes,
    DataView: kit.viewBytes,
    WeakMap: (value) => kit.weakMapHas(value, key),
    WeakSet: (value) => kit.weakSetHas(value, key),
    Number: kit.numberOf,
    String: kit.stringOf,
    Boolean: kit.booleanOf,
    BigInt: kit.bigintOf,
    Symbol: kit.symbolOf,
  };
  const sources = getter(RegExp.prototype, 'source');
  /** Return the built-in class an object really is of, whatever its prototype says, or ''. */
  kit.classOf = (value) => {
    if (kit.isArray(value)) return 'Array';
    const name = kit.typedName(value);
    if (name !== undefined) return name;
    if (Error.isError ? Error.isError(value) : value instanceof kit.Error) return 'Error';
    for (const one in probes) if (kit.takes(probes[one], value)) return one;
    if (value !== RegExp.prototype && kit.takes(sources, value)) return 'RegExp';
    return '';
  };

  /** Add to the end of an array of ours. */
  kit.push = (list, value) => {
    kit.defineProperty(list, list.length, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
  };

  /** Give the user's code a global, or an object of globals something, as built-ins are given. */
  kit.provide = (name, value, target = globalThis) => {
    kit.defineProperty(target, name, { __proto__: null, value, writable: true, configurable: true, enumerable: false });
  };

  // The engine makes every template of this method.
  kit.defineProperty(String.prototype, 'concat', { __proto__: null, writable: false, configurable: false });
  // Stack traces are text: through this hook code could reach the functions of ours that called it.
  kit.defineProperty(Error, 'prepareStackTrace', { __proto__: null, value: undefined, writable: false, configurable: false });
};
