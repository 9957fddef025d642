// structuredClone, and TextEncoder and TextDecoder.
(kit) => {
  'use strict';
  const { provide, DOMException, TypeError, RangeError } = kit;

  // structuredClone

  const refuse = (what) => {
    throw new DOMException(`${what} could not be cloned.`, 'DataCloneError');
  };
  const views = { __proto__: null };
  const errors = { __proto__: null };
  for (const one of [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float16Array, Float32Array, Float64Array, BigInt64Array, BigUint64Array]) {
    views[one.name] = one;
  }
  for (const one of [Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError]) errors[one.name] = one;
  const { Object: box } = globalThis;
  const flags = Object.getOwnPropertyDescriptor(RegExp.prototype, 'flags').get;
  const source = Object.getOwnPropertyDescriptor(RegExp.prototype, 'source').get;

  const cloneBuffer = (seen, buffer) => {
    if (kit.mapHas(seen, buffer)) return kit.mapGet(seen, buffer);
    if (!kit.takes(kit.bufferBytes, buffer)) return refuse('A SharedArrayBuffer');
    const copy = kit.bufferSlice(buffer, 0);
    kit.mapSet(seen, buffer, copy);
    return copy;
  };

  const cloneFields = (seen, value, copy) => {
    const keys = kit.ownKeys(value);
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      if (typeof key === 'symbol' || !kit.descriptor(value, key)?.enumerable) continue;
      const item = clone(seen, value[key]);
      kit.defineProperty(copy, key, { __proto__: null, value: item, writable: true, enumerable: true, configurable: true });
    }
    return copy;
  };

  const cloneError = (seen, value) => {
    const Kind = errors[kit.nameOf(value)] ?? kit.Error;
    const copy = new Kind();
    for (const name of ['message', 'stack', 'cause']) {
      const own = kit.descriptor(value, name);
      if (own !== undefined) provide(name, name === 'cause' ? clone(seen, value.cause) : kit.String(value[name]), copy);
    }
    return copy;
  };

  const make = (seen, value, kind) => {
    switch (kind) {
      case 'Array': {
        const copy = [];
        copy.length = value.length;
        return copy;
      }
      case '':
        if (kit.takes(kit.then, value)) return refuse('A promise');
        return {};
      case 'Map':
        return new kit.Map();
      case 'Set':
        return new kit.Set();
      case 'Date':
        return new kit.Date(kit.dateTime(value));
      case 'RegExp':
        return new kit.RegExp(kit.apply(source, value, []), kit.apply(flags, value, []));
      case 'Error':
        return cloneError(seen, value);
      case 'ArrayBuffer':
        return cloneBuffer(seen, value);
      case 'DataView':
        return new kit.DataView(cloneBuffer(seen, kit.viewBuffer(value)), kit.viewOffset(value), kit.viewBytes(value));
      case 'Number':
      case 'String':
      case 'Boolean':
      case 'BigInt':
        return box(kit[`${kind === 'BigInt' ? 'bigint' : kind === 'Number' ? 'number' : kind === 'String' ? 'string' : 'boolean'}Of`](value));
      default:
        if (views[kind] === undefined) return refuse(`A ${kind}`);
        return new views[kind](cloneBuffer(seen, kit.typedBuffer(value)), kit.typedOffset(value), kit.typedLength(value));
    }
  };

  const clone = (seen, value) => {
    if (typeof value === 'function' || typeof value === 'symbol') return refuse(kit.inspect(value, 0));
    if (typeof value !== 'object' || value === null) return value;
    if (kit.mapHas(seen, value)) return kit.mapGet(seen, value);
    const kind = kit.classOf(value);
    const copy = make(seen, value, kind);
    kit.mapSet(seen, value, copy);
    if (kind === 'Map') {
      const pairs = [];
      kit.mapEach(value, (item, key) => kit.push(pairs, { __proto__: null, key, item }));
      for (let at = 0; at < pairs.length; at++) kit.mapSet(copy, clone(seen, pairs[at].key), clone(seen, pairs[at].item));
    } else if (kind === 'Set') {
      const items = [];
      kit.setEach(value, (item) => kit.push(items, item));
      for (let at = 0; at < items.length; at++) kit.setAdd(copy, clone(seen, items[at]));
    }
    return kind === '' || kind === 'Array' ? cloneFields(seen, value, copy) : copy;
  };

  provide('structuredClone', function structuredClone(value) {
    if (arguments.length === 0) throw new TypeError('structuredClone needs a value');
    return clone(new kit.Map(), value);
  });

  // Text

  const utf8 = (text) => {
    const size = text.length;
    let bytes = new kit.Uint8Array(size + 16);
    let to = 0;
    for (let at = 0; at < size; at++) {
      let code = kit.charCodeAt(text, at);
      if (to + 4 > kit.typedLength(bytes)) {
        const wider = new kit.Uint8Array(to + (size - at) * 3 + 16);
        kit.typedSet(wider, bytes);
        bytes = wider;
      }
      if (code < 0x80) {
        bytes[to++] = code;
        continue;
      }
      if (code >= 0xd800 && code < 0xe000) {
        const low = code < 0xdc00 && at + 1 < size ? kit.charCodeAt(text, at + 1) : 0;
        if (low >= 0xdc00 && low < 0xe000) {
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
          at++;
        } else code = 0xfffd;
      }
      if (code < 0x800) bytes[to++] = 0xc0 | (code >> 6);
      else {
        if (code < 0x10000) bytes[to++] = 0xe0 | (code >> 12);
        else {
          bytes[to++] = 0xf0 | (code >> 18);
          bytes[to++] = 0x80 | ((code >> 12) & 63);
        }
        bytes[to++] = 0x80 | ((code >> 6) & 63);
      }
      bytes[to++] = 0x80 | (code & 63);
    }
    return new kit.Uint8Array(kit.bufferSlice(kit.typedBuffer(bytes), 0, to));
  };

  class TextEncoder {
    get encoding() {
      return 'utf-8';
    }
    encode(text = '') {
      return utf8(kit.String(text));
    }
    encodeInto(text, target) {
      const whole = kit.String(text);
      let read = 0;
      let written = 0;
      while (read < whole.length) {
        const code = kit.charCodeAt(whole, read);
        const step = code >= 0xd800 && code < 0xdc00 && read + 1 < whole.length ? 2 : 1;
        const bytes = utf8(kit.slice(whole, read, read + step));
        if (written + kit.typedLength(bytes) > kit.typedLength(target)) break;
        kit.typedSet(target, bytes, written);
        read += step;
        written += kit.typedLength(bytes);
      }
      return { read, written };
    }
  }
  provide('TextEncoder', TextEncoder);

  const names = { __proto__: null, 'utf-8': 'utf-8', utf8: 'utf-8', 'unicode-1-1-utf-8': 'utf-8', 'utf-16le': 'utf-16le', 'utf-16': 'utf-16le', latin1: 'windows-1252', 'iso-8859-1': 'windows-1252', ascii: 'windows-1252', 'us-ascii': 'windows-1252' };
  const lower = String.prototype.toLowerCase;
  const trim = String.prototype.trim;

  const bytesOf = (input) => {
    if (input === undefined) return new kit.Uint8Array(0);
    if (kit.takes(kit.bufferBytes, input)) return new kit.Uint8Array(input);
    if (kit.takes(kit.viewBytes, input)) return new kit.Uint8Array(kit.viewBuffer(input), kit.viewOffset(input), kit.viewBytes(input));
    if (kit.typedName(input) === undefined) throw new TypeError('TextDecoder.decode takes an ArrayBuffer or a view of one');
    return new kit.Uint8Array(kit.typedBuffer(input), kit.typedOffset(input), kit.typedBytes(input));
  };

  class TextDecoder {
    #encoding;
    #fatal;
    #keepMark;
    #rest = [];
    #begun = false;
    constructor(label = 'utf-8', options = {}) {
      this.#encoding = names[kit.apply(lower, kit.apply(trim, kit.String(label), []), [])];
      if (this.#encoding === undefined) throw new RangeError(`the encoding ${label} is not supported`);
      this.#fatal = !!options?.fatal;
      this.#keepMark = !!options?.ignoreBOM;
    }
    get encoding() {
      return this.#encoding;
    }
    get fatal() {
      return this.#fatal;
    }
    get ignoreBOM() {
      return this.#keepMark;
    }
    decode(input, options) {
      const more = !!options?.stream;
      const bytes = this.#joined(bytesOf(input));
      const wide = this.#encoding === 'utf-16le';
      let text = this.#encoding === 'utf-8' ? this.#utf8(bytes, more) : this.#units(bytes, wide, more);
      if (!this.#begun && text !== '' && !this.#keepMark && kit.charCodeAt(text, 0) === 0xfeff) text = kit.slice(text, 1);
      this.#begun = more && (this.#begun || text !== '');
      return text;
    }
    #joined(bytes) {
      const held = this.#rest.length;
      if (held === 0) return bytes;
      const whole = new kit.Uint8Array(held + kit.typedLength(bytes));
      for (let at = 0; at < held; at++) whole[at] = this.#rest[at];
      kit.typedSet(whole, bytes, held);
      this.#rest = [];
      return whole;
    }
    #bad() {
      if (this.#fatal) throw new TypeError(`the data is not valid ${this.#encoding}`);
      return '\ufffd';
    }
    #keep(bytes, from) {
      for (let at = from; at < kit.typedLength(bytes); at++) kit.push(this.#rest, bytes[at]);
    }
    #units(bytes, wide, more) {
      const parts = [];
      const size = kit.typedLength(bytes);
      let text = '';
      let at = 0;
      for (; at + (wide ? 1 : 0) < size; at += wide ? 2 : 1) {
        text += kit.fromCharCode(wide ? bytes[at] | (bytes[at + 1] << 8) : bytes[at]);
        if (text.length > 8192) {
          kit.push(parts, text);
          text = '';
        }
      }
      if (at < size) {
        if (more) this.#keep(bytes, at);
        else text += this.#bad();
      }
      kit.push(parts, text);
      return kit.join(parts, '');
    }
    #utf8(bytes, more) {
      const parts = [];
      const size = kit.typedLength(bytes);
      let text = '';
      for (let at = 0; at < size; ) {
        const first = bytes[at];
        if (first < 0x80) {
          text += kit.fromCharCode(first);
          at++;
        } else {
          const need = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
          let code = need === 1 ? first & 31 : need === 2 ? first & 15 : first & 7;
          let got = 0;
          while (got < need && at + got + 1 < size) {
            const next = bytes[at + got + 1];
            const low = got > 0 ? 0x80 : first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
            const high = got > 0 ? 0xbf : first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
            if (next < low || next > high) break;
            code = (code << 6) | (next & 63);
            got++;
          }
          if (need > 0 && got === need) {
            if (code >= 0x10000) {
              code -= 0x10000;
              text += kit.fromCharCode(0xd800 | (code >> 10), 0xdc00 | (code & 1023));
            } else text += kit.fromCharCode(code);
          } else if (need > 0 && more && at + got + 1 === size) {
            this.#keep(bytes, at);
            break;
          } else text += this.#bad();
          at += got + 1;
        }
        if (text.length > 8192) {
          kit.push(parts, text);
          text = '';
        }
      }
      kit.push(parts, text);
      return kit.join(parts, '');
    }
  }
  provide('TextDecoder', TextDecoder);
};
