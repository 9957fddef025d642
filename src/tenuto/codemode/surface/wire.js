// Values as they travel: plain JSON, and {"$": kind} for what JSON cannot say. The counterpart of
// wire.py. Runs the user's getters, toJSON excepted, so anything may be thrown from here.
(kit) => {
  'use strict';
  const DEPTH_MAX = 200;
  const { TypeError, RangeError, stringify } = kit;
  // What it is for whoever reads it, in bytes: the keeper ends us at a third more.
  const WEIGHT_MAX = 36 * 1024 * 1024;
  let weight = 0;
  const weigh = (more) => {
    weight += more;
    if (weight > WEIGHT_MAX) throw new RangeError('so many values cannot be passed on at once: pass less, or text');
  };
  const plainTag = (kind, text) => {
    weigh(300);
    return `{"$":${stringify(kind)},"v":${stringify(text)}}`;
  };

  const number = (value) => {
    if (kit.isFinite(value) && !kit.is(value, -0)) return kit.String(value);
    return plainTag('number', kit.is(value, -0) ? '-0' : kit.String(value));
  };

  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  kit.toBase64 = (bytes) => {
    const size = kit.typedLength(bytes);
    const parts = [];
    let text = '';
    for (let at = 0; at < size; at += 3) {
      const b = at + 1 < size ? bytes[at + 1] : 0;
      const c = at + 2 < size ? bytes[at + 2] : 0;
      text += alphabet[bytes[at] >> 2] + alphabet[((bytes[at] & 3) << 4) | (b >> 4)];
      text += at + 1 < size ? alphabet[((b & 15) << 2) | (c >> 6)] : '=';
      text += at + 2 < size ? alphabet[c & 63] : '=';
      if (text.length > 8192) {
        kit.push(parts, text);
        text = '';
      }
    }
    kit.push(parts, text);
    return kit.join(parts, '');
  };
  const places = { __proto__: null };
  for (let at = 0; at < 64; at++) places[alphabet[at]] = at;
  kit.fromBase64 = (text) => {
    let size = text.length;
    while (size > 0 && text[size - 1] === '=') size--;
    const bytes = new kit.Uint8Array((size * 3) >> 2);
    let bits = 0;
    let held = 0;
    let to = 0;
    for (let at = 0; at < size; at++) {
      held = ((held << 6) | places[text[at]]) & 0xffffff;
      bits += 6;
      if (bits >= 8) {
        bits -= 8;
        bytes[to++] = (held >> bits) & 255;
      }
    }
    return bytes;
  };

  const bytesOf = (value, kind) => {
    if (kind === 'ArrayBuffer') return new kit.Uint8Array(value);
    if (kind === 'DataView') return new kit.Uint8Array(kit.viewBuffer(value), kit.viewOffset(value), kit.viewBytes(value));
    return new kit.Uint8Array(kit.typedBuffer(value), kit.typedOffset(value), kit.typedBytes(value));
  };
  const isBytes = (kind) => kind === 'ArrayBuffer' || kind === 'DataView' || kit.indexOf(kind, '8') >= 0;

  // Half of a surrogate pair is no text to anybody else.
  const units = (text) => {
    const bytes = new kit.Uint8Array(text.length * 2);
    for (let at = 0; at < text.length; at++) {
      const code = kit.charCodeAt(text, at);
      bytes[at * 2] = code & 255;
      bytes[at * 2 + 1] = code >> 8;
    }
    return bytes;
  };
  const fromUnits = (bytes) => {
    const parts = [];
    for (let at = 0; at + 1 < kit.typedLength(bytes); at += 2) {
      kit.push(parts, kit.fromCharCode(bytes[at] | (bytes[at + 1] << 8)));
    }
    return kit.join(parts, '');
  };

  const list = (value, depth, above) => {
    const parts = [];
    for (let at = 0; at < value.length; at++) kit.push(parts, encode(value[at], depth + 1, above));
    return `[${kit.join(parts, ',')}]`;
  };

  const record = (value, depth, above) => {
    const parts = [];
    const keys = kit.ownKeys(value);
    let marked = false;
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      if (typeof key === 'symbol') continue;
      const property = kit.descriptor(value, key);
      if (property === undefined || !property.enumerable) continue;
      if (!kit.isWellFormed(key)) throw new TypeError('a key that holds half of a surrogate pair cannot be passed on');
      const item = value[key];
      if (key === '$') marked = true;
      kit.push(parts, `${stringify(key)}:${encode(item, depth + 1, above)}`);
    }
    const text = `{${kit.join(parts, ',')}}`;
    return marked ? `{"$":"object","v":${text}}` : text;
  };

  const object = (value, depth, above) => {
    if (depth >= DEPTH_MAX) throw new RangeError(`a value nested deeper than ${DEPTH_MAX} cannot be passed on`);
    for (let one = above; one !== null; one = one.above) {
      if (one.value === value) throw new TypeError('a value that contains itself cannot be passed on');
    }
    const line = { __proto__: null, value, above };
    const kind = kit.classOf(value);
    weigh(kind === 'Array' ? 64 : 184);
    if (kind === 'Array') return list(value, depth, line);
    if (kind === 'Date') {
      return kit.is(kit.dateTime(value), NaN) ? plainTag('number', 'NaN') : plainTag('date', kit.dateText(value));
    }
    if (kind !== '' && isBytes(kind)) return plainTag('bytes', kit.toBase64(bytesOf(value, kind)));
    if (kind === 'Error') return record({ __proto__: null, name: `${value.name}`, message: `${value.message}` }, depth, line);
    if (kind === '' && kit.takes(kit.then, value)) throw new TypeError('a promise cannot be passed on: await it first');
    if (kind !== '') throw new TypeError(`a ${kind} cannot be passed on: make it an array or a plain object first`);
    return record(value, depth, line);
  };

  const encode = (value, depth, above) => {
    weigh(32);
    switch (typeof value) {
      case 'string':
        weigh(52);
        return kit.isWellFormed(value) ? stringify(value) : plainTag('utf16', kit.toBase64(units(value)));
      case 'boolean':
        return value ? 'true' : 'false';
      case 'number':
        return number(value);
      case 'bigint':
        return plainTag('bigint', kit.bigintText(value));
      case 'undefined':
        weigh(300);
        return '{"$":"undefined"}';
      case 'object':
        return value === null ? 'null' : object(value, depth, above);
      default:
        throw new TypeError(`a ${typeof value} cannot be passed on`);
    }
  };

  const specials = { __proto__: null, NaN, Infinity, '-Infinity': -Infinity, '-0': -0 };
  const decode = (value) => {
    if (typeof value !== 'object' || value === null) return value;
    if (kit.isArray(value)) {
      for (let at = 0; at < value.length; at++) value[at] = decode(value[at]);
      return value;
    }
    const mark = kit.descriptor(value, '$');
    const inner = kit.descriptor(value, 'v')?.value;
    switch (mark?.value) {
      case 'undefined':
        return undefined;
      case 'bigint':
        return kit.BigInt(inner);
      case 'number':
        return specials[inner];
      case 'date':
        return new kit.Date(inner);
      case 'bytes':
        return kit.fromBase64(inner);
      case 'utf16':
        return fromUnits(kit.fromBase64(inner));
      case 'object':
        return fields(inner);
      default:
        return fields(value);
    }
  };
  const fields = (value) => {
    const keys = kit.ownKeys(value);
    for (let at = 0; at < keys.length; at++) {
      const property = kit.descriptor(value, keys[at]);
      property.value = decode(property.value);
      kit.defineProperty(value, keys[at], property);
    }
    return value;
  };

  kit.encode = (value) => {
    weight = 0;
    return encode(value, 0, null);
  };
  kit.decode = decode; // of what was parsed already

  /** Whether JSON reads back as the very same value, in Python too. */
  const exact = (value, depth) => {
    switch (typeof value) {
      case 'string':
        return kit.isWellFormed(value);
      case 'boolean':
        return true;
      case 'number':
        if (!kit.isFinite(value) || kit.is(value, -0)) return false;
        // From 1e21 on, an exponent is written, and so a float is read.
        return kit.isSafeInteger(value) || !kit.isInteger(value) || value >= 1e21 || value <= -1e21;
      case 'object':
        return value === null || (depth < DEPTH_MAX && isPlain(value, depth));
      default:
        return false;
    }
  };
  const isPlain = (value, depth) => {
    const isArray = kit.isArray(value);
    const proto = kit.getPrototypeOf(value);
    if (isArray ? proto !== kit.arrayPrototype : proto !== kit.objectPrototype && proto !== null) return false;
    const keys = kit.ownKeys(value);
    if (isArray && keys.length !== value.length + 1) return false; // holes, or names beside `length`
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      if (isArray && key === 'length') continue;
      if (typeof key === 'symbol' || !kit.isWellFormed(key)) return false;
      const property = kit.descriptor(value, key);
      if (property === undefined || !property.enumerable || !('value' in property)) return false;
      if (!exact(property.value, depth + 1)) return false;
    }
    return true;
  };
  /** JSON without the marks, for a value that `exact` has found to need none; descriptors only. */
  const plain = (value) => {
    if (typeof value !== 'object' || value === null) return typeof value === 'number' ? kit.String(value) : stringify(value);
    const parts = [];
    const keys = kit.ownKeys(value);
    const isArray = kit.isArray(value);
    for (let at = 0; at < keys.length; at++) {
      if (isArray && keys[at] === 'length') continue;
      const item = plain(kit.descriptor(value, keys[at]).value);
      kit.push(parts, isArray ? item : `${stringify(keys[at])}:${item}`);
    }
    return isArray ? `[${kit.join(parts, ',')}]` : `{${kit.join(parts, ',')}}`;
  };
  /** Return exact JSON of a value, or undefined where there is none. */
  kit.exactJson = (value) => (exact(value, 0) ? plain(value) : undefined);
};
