// console.*: each call is one message with its level, so that the order across levels is exact.
(kit) => {
  'use strict';
  const PIECE = 1 << 20; // signs in one message; a longer text goes in several
  const { provide } = kit;
  let indent = '';
  const counts = new kit.Map();
  const timers = new kit.Map();

  const send = (level, text) => {
    let rest = kit.toWellFormed(text);
    while (rest.length > PIECE) {
      let cut = PIECE;
      const code = kit.charCodeAt(rest, cut - 1);
      if (code >= 0xd800 && code < 0xdc00) cut--; // no pair of surrogates is cut in two
      kit.write(`{"type":"log","level":"${level}","more":true,"text":${kit.stringify(kit.slice(rest, 0, cut))}}`);
      rest = kit.slice(rest, cut);
    }
    kit.write(`{"type":"log","level":"${level}","text":${kit.stringify(rest)}}`);
  };
  kit.log = send;

  const print = (level, text) => {
    send(level, indent === '' ? text : indent + kit.replaceAll(text, '\n', `\n${indent}`));
  };

  const leveled = (level) =>
    ({ [level](...args) { print(level, kit.format(args)); } })[level]; // prettier-ignore

  const label = (name) => (name === undefined ? 'default' : kit.String(name));
  const elapsed = (ms) => {
    if (ms < 1000) return `${kit.Number(kit.apply(fixed, ms, [3]))}ms`;
    return `${kit.apply(fixed, ms / 1000, [3])}s`;
  };
  const fixed = (0).toFixed;

  const group = (...args) => {
    if (args.length > 0) print('log', kit.format(args));
    indent += '  ';
  };

  const api = {
    log: leveled('log'),
    info: leveled('info'),
    debug: leveled('debug'),
    warn: leveled('warn'),
    error: leveled('error'),
    dir(value, options) {
      print('log', kit.inspect(value, options?.depth === null ? 1000 : (options?.depth ?? 2)));
    },
    trace(...args) {
      const here = new kit.Error();
      const stack = kit.cleanStack(here);
      print('error', `Trace${args.length > 0 ? `: ${kit.format(args)}` : ''}${stack === '' ? '' : `\n${stack}`}`);
    },
    assert(condition, ...args) {
      if (condition) return;
      const text = args.length > 0 ? kit.format(args) : '';
      print('error', text === '' ? 'Assertion failed' : `Assertion failed: ${text}`);
    },
    count(name) {
      const key = label(name);
      const number = (kit.mapGet(counts, key) ?? 0) + 1;
      kit.mapSet(counts, key, number);
      print('log', `${key}: ${number}`);
    },
    countReset(name) {
      kit.mapDelete(counts, label(name));
    },
    time(name) {
      const key = label(name);
      if (kit.mapHas(timers, key)) print('warn', `Warning: Label '${key}' already exists for console.time()`);
      else kit.mapSet(timers, key, kit.now());
    },
    timeLog(name, ...args) {
      const key = label(name);
      const begin = kit.mapGet(timers, key);
      if (begin === undefined) print('warn', `Warning: No such label '${key}' for console.timeLog()`);
      else print('log', `${key}: ${elapsed(kit.now() - begin)}${args.length > 0 ? ` ${kit.format(args)}` : ''}`);
    },
    timeEnd(name) {
      const key = label(name);
      const begin = kit.mapGet(timers, key);
      if (begin === undefined) print('warn', `Warning: No such label '${key}' for console.timeEnd()`);
      else print('log', `${key}: ${elapsed(kit.now() - begin)}`);
      kit.mapDelete(timers, key);
    },
    group,
    groupCollapsed: group,
    groupEnd() {
      indent = kit.slice(indent, 0, -2);
    },
    table(data, columns) {
      const text = typeof data === 'object' && data !== null ? table(data, columns) : undefined;
      print('log', text ?? kit.format([data]));
    },
  };
  api.dirxml = api.log;

  const cellsOf = (row, names, columns) => {
    const cells = { __proto__: null };
    if (typeof row !== 'object' || row === null) {
      cells.Values = kit.inspect(row, 0);
      return cells;
    }
    const keys = columns ?? kit.ownKeys(row);
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      const own = typeof key === 'string' ? kit.descriptor(row, key) : undefined;
      if (own === undefined || !own.enumerable) continue;
      cells[key] = kit.inspect(row[key], 0);
      if (!kit.mapHas(names, key)) kit.mapSet(names, key, 0);
    }
    return cells;
  };

  const table = (data, columns) => {
    const names = new kit.Map();
    if (kit.isArray(columns)) for (let at = 0; at < columns.length; at++) kit.mapSet(names, kit.String(columns[at]), 0);
    const rows = [];
    let plain = false;
    const take = (index, row) => {
      const cells = cellsOf(row, names, kit.isArray(columns) ? columns : undefined);
      if (cells.Values !== undefined) plain = true;
      kit.push(rows, { __proto__: null, index, cells });
    };
    const kind = kit.classOf(data);
    let number = 0;
    if (kind === 'Map') kit.mapEach(data, (value) => take(kit.String(number++), value));
    else if (kind === 'Set') kit.setEach(data, (value) => take(kit.String(number++), value));
    else {
      const keys = kit.ownKeys(data);
      for (let at = 0; at < keys.length; at++) {
        const own = kit.descriptor(data, keys[at]);
        if (typeof keys[at] === 'string' && own?.enumerable) take(keys[at], data[keys[at]]);
      }
    }
    const heads = ['(index)'];
    kit.mapEach(names, (_, name) => kit.push(heads, name));
    if (plain) kit.push(heads, 'Values');
    return drawn(heads, rows);
  };

  const drawn = (heads, rows) => {
    const widths = [];
    for (let at = 0; at < heads.length; at++) {
      let width = heads[at].length;
      for (let row = 0; row < rows.length; row++) {
        const cell = at === 0 ? rows[row].index : (rows[row].cells[heads[at]] ?? '');
        if (cell.length > width) width = cell.length;
      }
      kit.push(widths, width);
    }
    const bar = (left, middle, right) => {
      const parts = [];
      for (let at = 0; at < widths.length; at++) kit.push(parts, kit.repeat('─', widths[at] + 2));
      return left + kit.join(parts, middle) + right;
    };
    const line = (cellOf) => {
      const parts = [];
      for (let at = 0; at < heads.length; at++) kit.push(parts, ` ${kit.padEnd(cellOf(heads[at], at), widths[at])} `);
      return `│${kit.join(parts, '│')}│`;
    };
    const out = [bar('┌', '┬', '┐'), line((head) => head), bar('├', '┼', '┤')];
    for (let row = 0; row < rows.length; row++) {
      kit.push(out, line((head, at) => (at === 0 ? rows[row].index : (rows[row].cells[head] ?? ''))));
    }
    kit.push(out, bar('└', '┴', '┘'));
    return kit.join(out, '\n');
  };

  provide('console', api);
};
