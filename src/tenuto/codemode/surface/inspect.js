// How values are shown: close to what Node prints. User code may run on the way (getters of proxies),
// so whoever calls this must expect it to throw.
(kit) => {
  'use strict';
  const WIDTH = 76;
  const ITEMS_MAX = 100;
  const TEXT_MAX = 10000;
  const { String, Map } = kit;

  const escapes = { __proto__: null, '\n': '\\n', '\r': '\\r', '\t': '\\t', '\b': '\\b', '\f': '\\f', '\v': '\\v', '\\': '\\\\' };
  const quoteText = (text) => {
    const quote = kit.indexOf(text, "'") < 0 ? "'" : kit.indexOf(text, '"') < 0 ? '"' : kit.indexOf(text, '`') < 0 ? '`' : "'";
    let out = quote;
    for (let at = 0; at < text.length; at++) {
      const sign = text[at];
      const code = kit.charCodeAt(text, at);
      if (escapes[sign] !== undefined) out += escapes[sign];
      else if (sign === quote) out += `\\${sign}`;
      else if (code < 32 || code === 127) out += `\\x${code < 16 ? '0' : ''}${kit.apply(hex, code, [16])}`;
      else out += sign;
    }
    return out + quote;
  };
  const hex = (0).toString;

  const shortText = (text) => {
    if (text.length <= TEXT_MAX) return quoteText(text);
    const more = text.length - TEXT_MAX;
    return `${quoteText(kit.slice(text, 0, TEXT_MAX))}... ${more} more character${more > 1 ? 's' : ''}`;
  };

  const isName = (text) => {
    for (let at = 0; at < text.length; at++) {
      const code = kit.charCodeAt(text, at);
      const letter = (code >= 65 && code <= 90) || (code >= 97 && code <= 122) || code === 95 || code === 36;
      if (!letter && !(at > 0 && code >= 48 && code <= 57)) return false;
    }
    return text.length > 0;
  };
  const keyText = (key) => (typeof key === 'symbol' ? `[${kit.symbolText(key)}]` : isName(key) ? key : quoteText(key));

  const primitive = (value) => {
    switch (typeof value) {
      case 'string':
        return shortText(value);
      case 'number':
        return kit.is(value, -0) ? '-0' : String(value);
      case 'bigint':
        return `${kit.bigintText(value)}n`;
      case 'symbol':
        return kit.symbolText(value);
      default:
        return String(value);
    }
  };

  /** The name of the class that made an object; null if it has no prototype at all. */
  const maker = (value) => {
    let proto = value;
    for (let steps = 0; steps < 100; steps++) {
      const own = kit.descriptor(proto, 'constructor');
      if (own !== undefined && typeof own.value === 'function' && proto !== value) {
        const name = kit.descriptor(own.value, 'name');
        if (name !== undefined && typeof name.value === 'string' && name.value !== '') return name.value;
      }
      proto = kit.getPrototypeOf(proto);
      if (proto === null) return steps === 0 ? null : '';
    }
    return '';
  };

  const functionHead = (value) => {
    const isClass = kit.startsWith(kit.functionText(value), 'class');
    const name = kit.descriptor(value, 'name')?.value;
    const named = typeof name === 'string' && name !== '';
    if (isClass) return `[class ${named ? name : '(anonymous)'}]`;
    const kind = maker(value) || 'Function';
    return named ? `[${kind}: ${name}]` : `[${kind} (anonymous)]`;
  };

  const errorText = (value) => {
    const head = kit.errorHead(value);
    const stack = kit.cleanStack(value);
    return stack === '' ? `[${head}]` : `${head}\n${stack}`;
  };

  const isIndex = (key, length) => {
    if (typeof key !== 'string') return false;
    const at = kit.Number(key);
    return kit.isInteger(at) && at >= 0 && at < length && String(at) === key;
  };

  const property = (state, value, key, depth) => {
    const own = kit.descriptor(value, key);
    if (own === undefined) return '';
    if (own.get !== undefined) return own.set !== undefined ? '[Getter/Setter]' : '[Getter]';
    if (own.set !== undefined) return '[Setter]';
    return show(state, own.value, depth + 1);
  };

  const more = (parts, left) => {
    if (left > 0) kit.push(parts, `... ${left} more item${left > 1 ? 's' : ''}`);
  };

  const arrayItems = (state, value, depth, parts) => {
    const length = value.length;
    let shown = 0;
    let at = 0;
    while (at < length && shown < ITEMS_MAX) {
      if (kit.descriptor(value, String(at)) === undefined) {
        const begin = at;
        // A sparse array can be four thousand million long: look at no more than a few of its holes.
        while (at < length && at - begin < 1000 && kit.descriptor(value, String(at)) === undefined) at++;
        if (at - begin >= 1000) at = nextIndex(value, at, length);
        const gap = at - begin;
        kit.push(parts, `<${gap} empty item${gap > 1 ? 's' : ''}>`);
      } else {
        kit.push(parts, property(state, value, String(at), depth));
        at++;
      }
      shown++;
    }
    more(parts, length - at);
  };
  const nextIndex = (value, from, length) => {
    const keys = kit.ownKeys(value); // numbers come first, in order
    for (let at = 0; at < keys.length; at++) {
      if (!isIndex(keys[at], length)) break;
      if (kit.Number(keys[at]) >= from) return kit.Number(keys[at]);
    }
    return length;
  };

  const typedItems = (value, parts) => {
    const length = kit.typedLength(value);
    for (let at = 0; at < length && at < ITEMS_MAX; at++) kit.push(parts, primitive(value[at]));
    more(parts, length - ITEMS_MAX);
  };

  const mapItems = (state, value, depth, parts) => {
    kit.mapEach(value, (item, key) => {
      if (parts.length < ITEMS_MAX) kit.push(parts, `${show(state, key, depth + 1)} => ${show(state, item, depth + 1)}`);
    });
    more(parts, kit.mapSize(value) - ITEMS_MAX);
  };
  const setItems = (state, value, depth, parts) => {
    kit.setEach(value, (item) => {
      if (parts.length < ITEMS_MAX) kit.push(parts, show(state, item, depth + 1));
    });
    more(parts, kit.setSize(value) - ITEMS_MAX);
  };

  const boxed = { __proto__: null, Number: kit.numberOf, String: kit.stringOf, Boolean: kit.booleanOf, BigInt: kit.bigintOf, Symbol: kit.symbolOf };

  /** What stands before the braces, and whether there is anything that needs no braces. */
  const describe = (value, kind, name) => {
    const own = (common) => (name === null ? `[${common}: null prototype] ` : `${name || common} `);
    if (typeof value === 'function') return { head: functionHead(value), alone: true };
    switch (kind) {
      case 'Array':
        return { head: name === 'Array' ? '' : own(`Array(${value.length})`), open: '[', close: ']' };
      case 'Map':
        return { head: `${kit.slice(own('Map'), 0, -1)}(${kit.mapSize(value)}) ` };
      case 'Set':
        return { head: `${kit.slice(own('Set'), 0, -1)}(${kit.setSize(value)}) ` };
      case 'Date':
        return { head: kit.is(kit.dateTime(value), NaN) ? 'Invalid Date' : kit.dateText(value), alone: true };
      case 'RegExp':
        return { head: kit.regexpText(value), alone: true };
      case 'Error':
        return { head: errorText(value), alone: true };
      case 'WeakMap':
      case 'WeakSet':
        return { head: `${kind} { <items unknown> }`, alone: true };
      case 'ArrayBuffer':
      case 'SharedArrayBuffer': {
        const size = kind === 'ArrayBuffer' ? kit.bufferBytes(value) : kit.sharedBytes(value);
        return { head: `${kind} { byteLength: ${size} }`, alone: true };
      }
      case 'DataView':
        return { head: `DataView { byteLength: ${kit.viewBytes(value)}, byteOffset: ${kit.viewOffset(value)} }`, alone: true };
      case '':
        return { head: name === 'Object' ? '' : own('Object') };
      default:
        if (boxed[kind] !== undefined) return { head: `[${kind}: ${primitive(boxed[kind](value))}]`, alone: true };
        return { head: `${name || kind}(${kit.typedLength(value)}) `, open: '[', close: ']' };
    }
  };

  const wrap = (shape, parts, depth) => {
    const open = shape.open ?? '{';
    const close = shape.close ?? '}';
    if (parts.length === 0) return `${shape.head}${open}${close}`;
    let width = shape.head.length + parts.length * 2;
    let broken = false;
    for (let at = 0; at < parts.length; at++) {
      width += parts[at].length;
      if (kit.indexOf(parts[at], '\n') >= 0) broken = true;
    }
    if (!broken && width + depth * 2 <= WIDTH) return `${shape.head}${open} ${kit.join(parts, ', ')} ${close}`;
    const lead = `\n${kit.repeat('  ', depth + 1)}`;
    // Short items of a long list share lines.
    if (open === '[' && !broken && parts.length > 6) return `${shape.head}${open}${lead}${kit.join(rows(parts), `,${lead}`)}\n${kit.repeat('  ', depth)}${close}`;
    return `${shape.head}${open}${lead}${kit.join(parts, `,${lead}`)}\n${kit.repeat('  ', depth)}${close}`;
  };
  const rows = (parts) => {
    const out = [];
    let row = '';
    for (let at = 0; at < parts.length; at++) {
      if (row !== '' && row.length + parts[at].length + 2 > WIDTH) {
        kit.push(out, row);
        row = '';
      }
      row += row === '' ? parts[at] : `, ${parts[at]}`;
    }
    kit.push(out, row);
    return out;
  };

  const object = (state, value, depth) => {
    const kind = typeof value === 'function' ? '' : kit.classOf(value);
    const shape = describe(value, kind, maker(value));
    if (depth > state.depth && !shape.alone) {
      return kind === 'Array' ? '[Array]' : `[${kit.slice(shape.head, 0, -1) || kind || 'Object'}]`;
    }
    const parts = [];
    kit.mapSet(state.above, value, 0);
    if (kind === 'Array') arrayItems(state, value, depth, parts);
    else if (kind === 'Map') mapItems(state, value, depth, parts);
    else if (kind === 'Set') setItems(state, value, depth, parts);
    else if (shape.open === '[') typedItems(value, parts);
    const listed = shape.open === '[';
    const keys = kit.ownKeys(value);
    let shown = 0;
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      if (listed && isIndex(key, value.length)) continue;
      const own = kit.descriptor(value, key);
      if (own === undefined || !own.enumerable) continue;
      if (kind === 'String' && isIndex(key, 2 ** 32)) continue;
      if (shown++ >= ITEMS_MAX) continue;
      kit.push(parts, `${keyText(key)}: ${property(state, value, key, depth)}`);
    }
    if (shown > ITEMS_MAX) kit.push(parts, `... ${shown - ITEMS_MAX} more`);
    const circle = kit.mapGet(state.above, value);
    kit.mapDelete(state.above, value);
    if (shape.alone && parts.length === 0) return shape.head;
    if (shape.alone) shape.head += ' ';
    if (circle) shape.head = `<ref *${circle}> ${shape.head}`;
    return wrap(shape, parts, depth);
  };

  const show = (state, value, depth) => {
    if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return primitive(value);
    if (kit.mapHas(state.above, value)) {
      const number = kit.mapGet(state.above, value) || ++state.circles;
      kit.mapSet(state.above, value, number);
      return `[Circular *${number}]`;
    }
    return object(state, value, depth);
  };

  kit.inspect = (value, depth = 2) => show({ __proto__: null, above: new Map(), circles: 0, depth }, value, 0);

  /** The text of console arguments: placeholders as in printf, the rest with blanks between. */
  kit.format = (args) => {
    const parts = [];
    let at = 0;
    if (typeof args[0] === 'string') {
      at = 1;
      const first = args[0];
      if (args.length > 1 && kit.indexOf(first, '%') >= 0) {
        const filled = fill(first, args);
        kit.push(parts, filled.text);
        at = filled.used;
      } else kit.push(parts, first);
    }
    for (; at < args.length; at++) kit.push(parts, typeof args[at] === 'string' ? args[at] : kit.inspect(args[at]));
    return kit.join(parts, ' ');
  };

  const fill = (template, args) => {
    let out = '';
    let used = 1;
    for (let at = 0; at < template.length; at++) {
      const kind = template[at] === '%' ? template[at + 1] : undefined;
      if (kind === '%') out += '%';
      else if (kind !== undefined && used < args.length && kit.indexOf('sdifjoOc', kind) >= 0) out += placed(kind, args[used++]);
      else {
        out += template[at];
        continue;
      }
      at++;
    }
    return { text: out, used };
  };
  const placed = (kind, value) => {
    switch (kind) {
      case 's':
        return typeof value === 'string' ? value : kit.inspect(value, 0);
      case 'd':
        return typeof value === 'bigint' ? `${kit.bigintText(value)}n` : typeof value === 'symbol' ? 'NaN' : String(kit.Number(value));
      case 'i':
        return typeof value === 'symbol' ? 'NaN' : String(whole(value));
      case 'f':
        return typeof value === 'symbol' ? 'NaN' : String(fraction(value));
      case 'j':
        return String(kit.stringify(value));
      case 'c':
        return '';
      default:
        return kit.inspect(value, 4);
    }
  };
  const whole = parseInt;
  const fraction = parseFloat;
};
