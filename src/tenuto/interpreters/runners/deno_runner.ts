// Runs the TypeScript or JavaScript that arrives over the channel, once, as if it were a module in
// the working directory. Started as `deno run -A deno_runner.ts`. No last value is sent: it is a
// module, and a module has exports instead.

// deno-lint-ignore-file no-explicit-any
import * as nodeModule from "node:module";
import { pathToFileURL } from "node:url";

const BROKEN_START = 125;
const TEXT_MAX = 4096;
const SET_CLOSE_ON_EXEC = [2, 1] as const; // F_SETFD, FD_CLOEXEC
const url = pathToFileURL(Deno.cwd() + "/$tenuto.ts").href;
const ownUrl = import.meta.url;

// Deno opens no inherited descriptor by its number, so the C library does.
const libc = Deno.dlopen(Deno.build.os === "darwin" ? "libSystem.dylib" : "libc.so.6", {
  read: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  write: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  fcntl: { parameters: ["i32", "i32", "i32"], result: "i32" },
}).symbols;
let descriptor = -1;

function receive(size: number): Uint8Array<ArrayBuffer> {
  const data = new Uint8Array(size);
  for (let done = 0; done < size; ) {
    const count = Number(libc.read(descriptor, data.subarray(done), BigInt(size - done)));
    if (count <= 0) throw new Error("the channel closed before the code arrived");
    done += count;
  }
  return data;
}

function openChannel(): string {
  const name = Deno.env.get("TENUTO_CHANNEL") ?? "";
  Deno.env.delete("TENUTO_CHANNEL");
  if (!/^\d+$/.test(name)) throw new Error("TENUTO_CHANNEL names no descriptor");
  descriptor = Number(name);
  libc.fcntl(descriptor, ...SET_CLOSE_ON_EXEC);
  const size = new DataView(receive(4).buffer).getUint32(0, true);
  return new TextDecoder().decode(receive(size));
}

/** Send one message if anyone is there; the program goes on in any case. */
function send(message: Record<string, unknown>): void {
  let rest: Uint8Array<ArrayBuffer> = new TextEncoder().encode(JSON.stringify(message) + "\n");
  while (rest.length > 0) {
    const count = Number(libc.write(descriptor, rest, BigInt(rest.length)));
    if (count <= 0) return;
    rest = rest.subarray(count);
  }
}

/** The text with the user's module named shortly, and without the frames of others than the user. */
function userText(text: string): string {
  const lines = text.split("\n").filter((line) =>
    !/^\s+at /.test(line) || !(line.includes(ownUrl) || /[( ](ext|node):/.test(line))
  );
  return lines.join("\n").replaceAll(url, "<tenuto>");
}

function fail(error: unknown): never {
  const isError = error instanceof Error;
  const text = userText(isError ? Deno.inspect(error, { colors: false }) : `Uncaught ${Deno.inspect(error)}`);
  const line = /<tenuto>:(\d+)/.exec(isError ? userText(`${error.message}\n${error.stack}`) : "")?.[1];
  const bytes = new TextEncoder().encode(userText(isError ? error.message : Deno.inspect(error)));
  send({
    type: "raised",
    name: isError ? error.name : error === null ? "null" : typeof error,
    message: new TextDecoder().decode(bytes.subarray(0, TEXT_MAX)).replace(/\ufffd$/, ""),
    ...(line ? { line: Number(line) } : {}),
  });
  console.error(text);
  Deno.exit(1);
}

const lines: string[] = [];
const readers: ((line: string | null) => void)[] = [];
const decoder = new TextDecoder();
const chunk = new Uint8Array(65536);
let partial = "";
let ended = false;

/** Read only while somebody waits: else stdin would keep the process alive. */
async function serve(): Promise<void> {
  send({ type: "reading" });
  while (readers.length > 0) {
    if (lines.length > 0 || ended) {
      readers.shift()!(lines.shift() ?? null);
      continue;
    }
    const count = await Deno.stdin.read(chunk).catch(() => null);
    ended = count === null;
    const parts = (partial + decoder.decode(chunk.subarray(0, count ?? 0), { stream: !ended })).split("\n");
    partial = parts.pop()!;
    lines.push(...parts);
    if (ended && partial !== "") lines.push(partial);
  }
  send({ type: "read" });
}

/** Promise of the next line of stdin without its newline, or null at its end. */
function readStdin(): Promise<string | null> {
  if (readers.length === 0 && (lines.length > 0 || ended)) return Promise.resolve(lines.shift() ?? null);
  return new Promise((resolve) => {
    readers.push(resolve);
    if (readers.length === 1) serve();
  });
}

/** Serve the code as a module of the working directory, so that its relative imports work. */
function register(code: string): string {
  const { registerHooks, stripTypeScriptTypes } = nodeModule as any;
  if (!registerHooks || !stripTypeScriptTypes) {
    return "data:application/typescript;charset=utf-8," + encodeURIComponent(code);
  }
  let source = code;
  for (const mode of ["strip", "transform"]) { // the first keeps every position, the second knows enums
    try {
      source = stripTypeScriptTypes(code, { mode });
      break;
    } catch {
      // then the engine names the error, at its line
    }
  }
  registerHooks({
    resolve(specifier: string, context: any, next: any) {
      return specifier === url ? { url, format: "module", shortCircuit: true } : next(specifier, context);
    },
    load(address: string, context: any, next: any) {
      if (address !== url) return next(address, context);
      return { source, format: "module", shortCircuit: true };
    },
  });
  return url;
}

let code = "";
try {
  code = openChannel();
} catch (error) {
  console.error(`tenuto: the code did not arrive: ${(error as Error).message}`);
  Deno.exit(BROKEN_START);
}
Object.defineProperty(globalThis, "readStdin", { value: readStdin, configurable: true, writable: true });
addEventListener("error", (event) => {
  event.preventDefault();
  fail(event.error);
});
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  fail(event.reason);
});
// Not awaited: Deno then sees for itself when nothing is left to do.
import(register(code)).catch(fail);
