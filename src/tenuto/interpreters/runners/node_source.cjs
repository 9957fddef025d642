'use strict';
// Turns the user's JavaScript into the body of an async function, by the positions of its syntax
// tree, so that every line keeps its number. Nothing here runs any of it.

const AsyncFunction = (async () => {}).constructor;
const RETURN = 'return $last((';
const NEWLINE = /\r\n|[\n\r\u2028\u2029]/;

class BadSource extends Error {
  constructor(message, line, column) {
    super(message);
    this.line = line;
    this.column = column;
  }
}

function parse(acorn, code) {
  const options = {
    ecmaVersion: 'latest',
    locations: true,
    allowHashBang: true,
    allowAwaitOutsideFunction: true,
    allowReturnOutsideFunction: true,
  };
  const failures = [];
  for (const sourceType of ['module', 'script']) {
    try {
      return acorn.parse(code, { ...options, sourceType });
    } catch (error) {
      if (!(error instanceof SyntaxError) || !error.loc) throw error;
      failures.push(error);
    }
  }
  // The reading that came further is the one that was meant.
  const worst = failures[1].pos > failures[0].pos ? failures[1] : failures[0];
  try {
    AsyncFunction(code); // compiles and does not run: V8 may know syntax that acorn does not
    return null;
  } catch {
    throw new BadSource(worst.message.replace(/ \(\d+:\d+\)$/, ''), worst.loc.line, worst.loc.column);
  }
}

/** Blank text from start to end, but for its line ends. A semicolon keeps the neighbours apart. */
function blank(code, start, end, first = ';', last = '') {
  const text = code.slice(start, end).replace(/[^\n\r\u2028\u2029]/g, ' ');
  return first + text.slice(first.length, text.length - last.length) + last;
}

const nameOf = (node) => (node.type === 'Literal' ? node.value : node.name);

function requestOf(node) {
  const attributes = {};
  for (const item of node.attributes ?? []) attributes[nameOf(item.key)] = item.value.value;
  return {
    specifier: node.source.value,
    attributes: node.attributes?.length ? attributes : null,
    line: node.loc.start.line,
    names: [],
  };
}

/** The bindings of one import, as code that reads the namespace object number `index`. */
function bind(node, index, request) {
  const parts = [];
  let binding = '';
  for (const item of node.specifiers) {
    if (item.type === 'ImportNamespaceSpecifier') {
      binding += `const ${item.local.name}=$imports[${index}];`;
      continue;
    }
    const name = item.type === 'ImportDefaultSpecifier' ? 'default' : nameOf(item.imported);
    request.names.push(name);
    parts.push(`${JSON.stringify(name)}:${item.local.name}`);
  }
  return parts.length ? `const {${parts.join()}}=$imports[${index}];${binding}` : binding;
}

const withoutSemicolon = (code, node) => (code[node.end - 1] === ';' ? node.end - 1 : node.end);

function rewriteExport(code, node, isLast, edits) {
  const inner = node.declaration;
  if (!inner) {
    edits.push([node.start, node.end, blank(code, node.start, node.end)]);
    return;
  }
  const declares = /^(Function|Class|Variable)Declaration$/.test(inner.type);
  if (node.type === 'ExportNamedDeclaration' || (declares && inner.id)) {
    edits.push([node.start, inner.start, blank(code, node.start, inner.start, '')]);
    return;
  }
  // `export default` of an expression, or of a function or class without a name
  const start = code.indexOf('default', node.start) + 'default'.length;
  const end = withoutSemicolon(code, node);
  const opening = isLast && !declares ? [RETURN, ''] : [';', '(('];
  edits.push([node.start, start, blank(code, node.start, start, ...opening)], [end, end, '))']);
}

/**
 * Return what to compile: the code, what stands before it on its first line, the modules it
 * imports statically (they load first, in order), and where the last value's marker was put.
 */
function rewrite(code, acorn, loadWalk) {
  if (code.charCodeAt(0) === 0xfeff) code = code.slice(1);
  const tree = parse(acorn, code);
  if (code.startsWith('#!')) code = '//' + code.slice(2);
  const result = { code, head: '', imports: [], strict: false, shift: null, original: code };
  if (!tree) return result;

  const edits = [];
  const last = tree.body.findLast((node) => node.type !== 'EmptyStatement');
  for (const node of tree.body) {
    if (node.type === 'ImportDeclaration') {
      const request = requestOf(node);
      result.head += bind(node, result.imports.length, request);
      result.imports.push(request);
      edits.push([node.start, node.end, blank(code, node.start, node.end)]);
    } else if (/^Export/.test(node.type)) {
      if (node.source) {
        const request = requestOf(node);
        for (const item of node.specifiers ?? []) request.names.push(nameOf(item.local));
        result.imports.push(request);
      }
      rewriteExport(code, node, node === last, edits);
    } else {
      continue;
    }
    result.strict = true;
  }

  if (last?.type === 'ExpressionStatement') {
    const end = withoutSemicolon(code, last);
    edits.push([last.start, last.start, RETURN], [end, end, '))']);
    const { line, column } = last.loc.start;
    result.shift = { line, column, by: RETURN.length };
  }
  if (/import\s*\.\s*meta/.test(code)) {
    loadWalk().full(tree, (node) => {
      if (node.type !== 'MetaProperty' || node.meta.name !== 'import') return;
      edits.push([node.start, node.end, '$importMeta' + blank(code, node.start + 11, node.end, '')]);
      result.strict = true;
    });
  }

  edits.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let text = '';
  let from = 0;
  for (const [start, end, replacement] of edits) {
    text += code.slice(from, start) + replacement;
    from = end;
  }
  result.code = text + code.slice(from);
  if (result.strict) result.head = '"use strict";' + result.head;
  return result;
}

/** Three lines that show where the source is wrong. */
function excerpt(code, line, column) {
  const text = code.split(NEWLINE)[line - 1] ?? '';
  const from = Math.max(0, column - 100);
  const mark = column < 0 ? '' : text.slice(from, column).replace(/[^\t]/g, ' ') + '^\n';
  return `<tenuto>:${line}\n${text.slice(from, from + 200)}\n${mark}`;
}

module.exports = { BadSource, excerpt, rewrite };
