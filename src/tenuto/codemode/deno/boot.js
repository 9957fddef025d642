// The main module of a deno process: takes one line from its stdin, and becomes what that says.
const { stdin } = Deno;
let held = new Uint8Array(1 << 17);
let size = 0;
let end = -1;
while (end < 0) {
  if (size === held.length) {
    const wider = new Uint8Array(size * 2);
    wider.set(held);
    held = wider;
  }
  const count = stdin.readSync(held.subarray(size));
  if (count === null) Deno.exit(125);
  end = held.subarray(size, size + count).indexOf(10);
  if (end >= 0) end += size;
  size += count;
}
const parts = JSON.parse(new TextDecoder().decode(held.subarray(0, end)));
const load = ([name, text]) => (0, eval)(`${text}\n//# sourceURL=tenuto:${name}`);
load(parts[0])(Deno, parts.slice(1), load, held.slice(end + 1, size));
