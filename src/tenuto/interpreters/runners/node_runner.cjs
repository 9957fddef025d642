'use strict';
// Runs the JavaScript that arrives over the channel, once, as if it were a file in the working
// directory. Started as `node --expose-internals node_runner.cjs`: acorn is node's own.

const Module = require('module');
const path = require('path');
const vm = require('vm');
const { pathToFileURL } = require('url');
const { inspect, types } = require('util');
const channel = require('./node_channel.cjs');
const { BadSource, excerpt, rewrite } = require('./node_source.cjs');

const BROKEN_START = 125;
const UNSETTLED = 13; // node's own exit code for it
const filename = path.join(process.cwd(), '[tenuto]');
const url = pathToFileURL(filename).href;
const place = new RegExp(url.replace(/[.*+?^${}()|[\]\\]/g, '\\$&') + '(?::(\\d+)(?::(\\d+))?)?', 'g');
const importLine = Symbol('line');

class Last {
  constructor(value) {
    this.value = value;
  }
}

/** What `require` and `import.meta` of a file in the working directory would be. */
function surroundings() {
  const module = new Module(filename, null);
  module.filename = filename;
  module.paths = Module._nodeModulePaths(path.dirname(filename));
  process.mainModule = module;
  const require = Module.createRequire(filename);
  require.main = module;
  const resolve = (specifier) => {
    if (/^\.{0,2}\//.test(specifier)) return new URL(specifier, url).href;
    if (URL.canParse(specifier)) return new URL(specifier).href;
    const found = require.resolve(specifier);
    return path.isAbsolute(found) ? pathToFileURL(found).href : found.replace(/^(node:)?/, 'node:');
  };
  const dirname = path.dirname(filename);
  const meta = Object.assign(Object.create(null), { dirname, filename, main: true, resolve, url });
  return { module, require, meta, dirname };
}

/** Mark the warning about the one experimental feature used here as given: it is not the user's. */
function hush() {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    require('internal/util').emitExperimentalWarning('vm.USE_MAIN_CONTEXT_DEFAULT_LOADER');
  } finally {
    process.emitWarning = emitWarning;
  }
}

function compile(source) {
  const before =
    '(function($imports,$importMeta,$last,exports,require,module,__filename,__dirname){' +
    `return[(s,o)=>import(s,o),async function(){${source.head}`;
  const script = new vm.Script(before + source.code + '\n}]})', {
    filename: url,
    columnOffset: -before.length,
    importModuleDynamically:
      vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ??
      ((specifier, _script, attributes) => import(world.meta.resolve(specifier), { with: attributes })),
  });
  return script.runInThisContext();
}

/** The error as text, with only the frames of the user's code and of what it loaded. */
function describe(error) {
  const shift = source.shift;
  const kept = [];
  for (const line of inspect(error).split('\n')) {
    const isFrame = /^\s+at /.test(line);
    if (!isFrame || !(/[( ]node:/.test(line) || line.includes(__dirname))) kept.push(line);
    else if (line.endsWith(' {')) kept[kept.length - 1] += ' {'; // properties of the error follow
  }
  return kept
    .join('\n')
    .replace(place, (_, line, column) => {
      if (!line) return '<tenuto>';
      const moved = shift && column && Number(line) === shift.line && Number(column) > shift.column + shift.by;
      return `<tenuto>:${line}` + (column ? `:${moved ? column - shift.by : column}` : '');
    });
}

function lineOf(error) {
  if (error?.[importLine]) return error[importLine];
  const stack = types.isNativeError(error) && typeof error.stack === 'string' ? error.stack : '';
  for (const [, line] of stack.matchAll(place)) if (line) return Number(line);
  return undefined;
}

function fail(text, name, message, line) {
  channel.sendRaised(name, message, line);
  try {
    require('fs').writeSync(2, text.endsWith('\n') ? text : text + '\n');
  } catch {
    // stderr is gone: the channel knows
  }
  process.exit(1);
}

function onUncaught(error) {
  // A program that handles such errors itself is left to it.
  if (process.listenerCount('uncaughtException') > 1) return;
  const isError = types.isNativeError(error) || error instanceof Error;
  let text = isError ? describe(error) : `Uncaught ${inspect(error)}`;
  if (error?.[importLine] && !text.includes('<tenuto>:')) text = `<tenuto>:${error[importLine]}\n${text}`;
  const name = isError ? error.name : error === null ? 'null' : typeof error;
  fail(text, name, isError ? error.message : inspect(error), lineOf(error));
}

async function loadImports(load) {
  const namespaces = [];
  for (const request of source.imports) {
    try {
      const options = request.attributes ? { with: request.attributes } : undefined;
      const namespace = await load(request.specifier, options);
      for (const name of request.names) {
        if (name in namespace) continue;
        throw new SyntaxError(`The requested module '${request.specifier}' does not provide an export named '${name}'`);
      }
      namespaces.push(namespace);
    } catch (error) {
      if (error instanceof Error && Object.isExtensible(error)) {
        Object.defineProperty(error, importLine, { value: request.line, enumerable: false });
      }
      throw error;
    }
  }
  return namespaces;
}

async function run(program) {
  const imports = [];
  const { module, require, meta, dirname } = world;
  const last = (value) => new Last(value);
  const [load, body] = program(imports, meta, last, module.exports, require, module, filename, dirname);
  if (source.imports.length > 0) imports.push(...(await loadImports(load)));
  return body.call(source.strict ? undefined : module.exports);
}

let source;
let world;

function main() {
  let code;
  try {
    if (Number(process.versions.node.split('.')[0]) < 20) throw new Error('node 20 or later is needed');
    code = channel.open();
  } catch (error) {
    process.stderr.write(`tenuto: the code did not arrive: ${error.message}\n`);
    process.exit(BROKEN_START);
  }
  const acorn = require('internal/deps/acorn/acorn/dist/acorn');
  const loadWalk = () => require('internal/deps/acorn/acorn-walk/dist/walk');
  let program;
  try {
    source = rewrite(code, acorn, loadWalk);
    world = surroundings();
    hush();
    program = compile(source);
  } catch (error) {
    if (!(error instanceof BadSource || error instanceof SyntaxError)) throw error;
    const line = error.line ?? (lineOf(error) || 1);
    fail(`${excerpt(code, line, error.column ?? -1)}SyntaxError: ${error.message}`, 'SyntaxError', error.message, line);
  }

  process.execArgv.splice(0, process.execArgv.length, ...process.execArgv.filter((flag) => flag !== '--expose-internals'));
  process.argv[1] = filename;
  delete require.cache[__filename];
  Object.defineProperty(globalThis, 'readStdin', {
    value: () => require('./node_stdin.cjs').readStdin(),
    configurable: true,
    writable: true,
  });
  process.on('uncaughtException', onUncaught);

  let settled = false;
  let drained = false;
  process.once('beforeExit', () => (drained = true));
  process.on('exit', (status) => {
    if (settled || !drained || status !== 0) return;
    process.exitCode = UNSETTLED;
    const message = 'the program ended while a top-level await was still waiting';
    channel.sendRaised('Error', message);
    require('fs').writeSync(2, `Error: ${message}\n`);
  });
  run(program)
    .finally(() => (settled = true))
    .then((result) => (result instanceof Last && types.isPromise(result.value) ? result.value : result))
    .then((result) => channel.sendValue(result instanceof Last ? result.value : result))
    .catch((error) => {
      // Thrown outside of any promise: then the program's own listeners hear of it first.
      process.nextTick(() => {
        throw error;
      });
    });
}

main();
