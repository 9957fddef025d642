// Errors as the user should see them: the lines of the user's code, and no frames of ours.
(kit, host) => {
  'use strict';
  kit.ownNames = ['tenuto:']; // the files of this folder
  kit.userNames = ['<input>']; // how engines name the user's code
  const LINES_MAX = 50;
  kit.codeName = 'code';

  const text = (value, fallback) => {
    try {
      return kit.toWellFormed(kit.String(value));
    } catch {
      return fallback;
    }
  };

  const number = (digits) => {
    const value = kit.Number(digits);
    return kit.isInteger(value) && value > 0 ? value : undefined;
  };

  const nameIn = (line) => {
    for (let at = 0; at < kit.userNames.length; at++) {
      const begin = kit.indexOf(line, kit.userNames[at]);
      if (begin >= 0) return { __proto__: null, begin, end: begin + kit.userNames[at].length };
    }
    return undefined;
  };

  /** Take a line of a stack trace apart: where in the user's code; undefined if not there. */
  const place = (line) => {
    const name = nameIn(line);
    if (name === undefined) return undefined;
    const rest = kit.slice(line, name.end);
    const end = kit.indexOf(rest, ')');
    const numbers = kit.split(end < 0 ? rest : kit.slice(rest, 0, end), ':');
    const { length } = numbers;
    let absolute = number(numbers[length - 2]);
    let column = number(numbers[length - 1]);
    if (absolute === undefined) {
      absolute = column;
      column = undefined;
    }
    if (absolute === undefined) return undefined;
    // In a session this may be code that ran before: then its number is known, and its own line.
    const cell = host.cell(absolute);
    const row = host.row(absolute);
    // What was put around and into the code moved its columns, and no line.
    if (column !== undefined) column = cell === 0 ? host.column(row, column) : undefined;
    return { __proto__: null, row, column, cell };
  };

  const isOwn = (line) => {
    for (let at = 0; at < kit.ownNames.length; at++) if (kit.indexOf(line, kit.ownNames[at]) >= 0) return true;
    return false;
  };
  const isNative = (line) => kit.indexOf(line, '(native)') >= 0 || kit.indexOf(line, '(<anonymous>)') >= 0;

  const makerOf = (error) => {
    try {
      const name = error.constructor.name;
      return typeof name === 'string' && name !== '' ? name : '?';
    } catch {
      return '?';
    }
  };

  const lines = (error) => {
    let stack;
    try {
      stack = error.stack;
    } catch {
      return [];
    }
    if (typeof stack !== 'string' || stack === '') return [];
    const all = kit.split(kit.toWellFormed(stack), '\n');
    const kept = [];
    for (let at = 0; at < all.length && kept.length < LINES_MAX; at++) {
      const line = all[at];
      // Some engines begin with the error itself.
      if (!kit.startsWith(line, '    at ') || isOwn(line)) continue;
      if (place(line)?.column === 0) continue; // what was put around the code
      kit.push(kept, line);
    }
    // The constructor that a class of errors is given by the language is nobody's code.
    const made = `    at ${makerOf(error)} (`;
    while (kept.length > 1 && kit.startsWith(kept[0], made)) {
      for (let at = 1; at < kept.length; at++) kept[at - 1] = kept[at];
      kept.length -= 1;
    }
    // What called the user's code is ours: eval itself, and the function that a cell is.
    while (kept.length > 0 && isNative(kept[kept.length - 1])) kept.length -= 1;
    return kept;
  };

  /** A line of other code than the user's, as people should see it. */
  kit.shownElse = (line) => line;

  const shown = (line) => {
    const where = place(line);
    if (where === undefined) return kit.shownElse(line);
    const head = kit.slice(line, 0, nameIn(line).begin);
    const name = where.cell === 0 ? kit.codeName : `cell ${where.cell}`;
    const at = `${name}:${where.row}${where.column === undefined ? '' : `:${where.column}`}`;
    if (kit.indexOf(head, ' <eval> (') >= 0 || kit.indexOf(head, ' eval (') >= 0) {
      return kit.indexOf(head, 'at async ') >= 0 ? `    at async ${at}` : `    at ${at}`;
    }
    return kit.indexOf(head, '(') < 0 ? head + at : `${head}${at})`;
  };

  /** The frames of an error that are the user's, as text. */
  kit.cleanStack = (error) => {
    const kept = lines(error);
    for (let at = 0; at < kept.length; at++) kept[at] = shown(kept[at]);
    return kit.join(kept, '\n');
  };

  /** `Name: message`, whatever was thrown. */
  kit.errorHead = (error) => {
    const name = kit.nameOf(error);
    const message = kit.messageOf(error);
    return message === '' ? name : `${name}: ${message}`;
  };

  const isError = (error) => typeof error === 'object' && error !== null && kit.classOf(error) === 'Error';

  kit.nameOf = (error) => {
    if (!isError(error)) return 'Error';
    try {
      return text(error.name, 'Error') || 'Error';
    } catch {
      return 'Error';
    }
  };

  kit.messageOf = (error) => {
    if (isError(error)) {
      try {
        return text(error.message, '');
      } catch {
        return '<the message of the error threw>';
      }
    }
    try {
      return typeof error === 'string' ? text(error, '') : kit.toWellFormed(kit.inspect(error));
    } catch {
      return `<a ${typeof error} that cannot be shown>`;
    }
  };

  /** Whether the engine itself said that there is no memory left. */
  kit.isOutOfMemory = (error) => {
    try {
      return kit.descriptor(error, 'message')?.value === 'out of memory' && error instanceof kit.InternalError;
    } catch {
      return false;
    }
  };

  /** The message that tells the keeper of an uncaught error, and the text that people read. */
  kit.raised = (error) => {
    const name = kit.nameOf(error);
    const message = kit.slice(kit.messageOf(error), 0, 4096);
    const kept = isError(error) ? lines(error) : [];
    let where;
    for (let at = 0; at < kept.length && where === undefined; at++) {
      const one = place(kept[at]);
      if (one?.cell === 0) where = one;
    }
    const stack = isError(error) ? kit.cleanStack(error) : '';
    let fields = `"name":${kit.stringify(name)},"message":${kit.stringify(kit.toWellFormed(message))}`;
    if (where !== undefined) fields += `,"line":${where.row}`;
    if (where?.column !== undefined) fields += `,"column":${where.column}`;
    if (stack !== '') fields += `,"stack":${kit.stringify(kit.slice(stack, 0, 8192))}`;
    const head = isError(error) ? `Uncaught ${kit.errorHead(error)}` : `Uncaught ${message}`;
    return { __proto__: null, fields, text: stack === '' ? head : `${head}\n${stack}` };
  };
};
