"""How fast code in the VM gets an answer from a function of its caller's.

Both floors have the same hops, in Python, over unix sockets: a process that asks, one that passes on,
one that answers. The bare one is a prototype of the design without what makes it safe: QuickJS that
awaits a promise, a relay that reads JSON, an event loop that runs an async function. The other passes
on bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tenuto.bench.place import Place
from tenuto.bench.table import Row, median, none_of, percentile, times_at_most
from tenuto.engine.engine import Engine

_RELAY = """
import json, select, socket, sys
ends = [socket.socket(fileno=int(one)) for one in sys.argv[1:3]]
reads = sys.argv[3] == "bare"
other = {ends[0].fileno(): ends, ends[1].fileno(): ends[::-1]}
epoll = select.epoll()
for one in ends:
    epoll.register(one.fileno(), select.EPOLLIN)
while True:
    for fd, _ in epoll.poll():
        here, there = other[fd]
        data = here.recv(65536)
        if not data:
            sys.exit()
        if reads:
            data = json.dumps(json.loads(data)).encode()
        there.sendall(data)
"""

_ECHO = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
while data := sock.recv(65536):
    sock.sendall(data)
"""

_SERVER = """
import asyncio, json, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
async def echo(value):
    return value
async def serve(call):
    value = await echo(*call["args"])
    sock.send(json.dumps({"type": "answer", "n": call["n"], "ok": True, "value": value}).encode())
async def main():
    loop = asyncio.get_running_loop()
    tasks = set()
    ended = loop.create_future()
    def ready():
        data = sock.recv(65536)
        if not data:
            ended.set_result(None)
            loop.remove_reader(sock.fileno())
            return
        task = loop.create_task(serve(json.loads(data)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    loop.add_reader(sock.fileno(), ready)
    await ended
asyncio.run(main())
"""

_ASK_BYTES = """
import json, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
took = []
for n in range(int(sys.argv[2])):
    begin = time.perf_counter()
    sock.sendall(b'{"type":"call","n":%d,"name":"echo","args":[%d]}' % (n, n))
    sock.recv(65536)
    took.append((time.perf_counter() - begin) * 1000)
print(json.dumps(took))
"""

_ASK_SCRIPT = """
let n = 0;
const open = new Map();
const echo = (...args) => new Promise((resolve) => {
  open.set(++n, resolve);
  send(JSON.stringify({type: 'call', n, name: 'echo', args}));
});
const settle = (text) => {
  const answer = JSON.parse(text);
  open.get(answer.n)(answer.value);
  open.delete(answer.n);
};
const took = [];
let done = false;
const main = async (count) => {
  for (let at = 0; at < count; at++) {
    const begin = performance.now();
    await echo(at);
    took.push(performance.now() - begin);
  }
  done = true;
};
"""

_ASK = """
import socket, sys
import _quickjs
sock = socket.socket(fileno=int(sys.argv[1]))
context = _quickjs.Context()
context.add_callable("send", lambda text: sock.sendall(text.encode()))
context.eval(sys.argv[3])
context.eval("main(" + sys.argv[2] + ")")
settle = context.eval("settle")
while True:
    while context.execute_pending_job():
        pass
    if context.eval("done"):
        break
    settle(sock.recv(65536).decode())
print(context.eval("JSON.stringify(took)"))
"""

_CODE = """
const took = [];
let wrong = 0;
for (let n = 0; n < inputs.count; n++) {
  const begin = performance.now();
  const back = await echo(n);
  took.push(performance.now() - begin);
  if (back !== n) wrong++;
}
({took, wrong})
"""

_AT_ONCE = """
const begin = performance.now();
const all = await Promise.all(Array.from({length: inputs.count}, (_, n) => echo(n)));
({took: performance.now() - begin, wrong: all.filter((back, n) => back !== n).length})
"""


def hostcalls(quick: bool) -> Iterator[Row]:
    """Measure one call after the other, async and in a thread, and many at once."""
    yield from asyncio.run(_hostcalls(2 if quick else 8, 50 if quick else 500))


async def _hostcalls(rounds: int, count: int) -> list[Row]:
    async def echo(value: int) -> int:
        return value

    def blocking(value: int) -> int:
        return value

    floor: list[float] = []
    raw: list[float] = []
    ours: list[float] = []
    threaded: list[float] = []
    wrong = 0
    with Place() as place:
        async with place.engine() as engine:
            await _run(engine, _CODE, echo, 10)
            for _ in range(rounds):
                floor += await asyncio.to_thread(_floor, _ASK, _SERVER, "bare", count)
                raw += await asyncio.to_thread(_floor, _ASK_BYTES, _ECHO, "bytes", count)
                for times, function in ((ours, echo), (threaded, blocking)):
                    value = await _run(engine, _CODE, function, count)
                    times.extend(value["took"])
                    wrong += value["wrong"]
            many = await _run(engine, _AT_ONCE, echo, count * 10)
            wrong += many["wrong"]
    rate = count * 10 / many["took"] * 1000
    bare, late = median(floor), percentile(floor, 99)
    return [
        times_at_most("host call, async function, p50", median(ours), bare, 2),
        Row(what="host call, async function, p99", ours=percentile(ours, 99), floor=late),
        Row(what="host call, function in a thread, p50", ours=median(threaded), floor=bare),
        Row(what="host call, beside bytes alone, p50", ours=median(ours), floor=median(raw)),
        Row(what=f"host calls, {count * 10} at once", ours=rate, unit="/s"),
        none_of("host calls answered wrongly", wrong, "calls"),
    ]


async def _run(engine: Engine, code: str, function: Any, count: int) -> dict[str, Any]:
    functions, inputs = {"echo": function}, {"count": count}
    snapshot = await engine.code(code, functions=functions, inputs=inputs, wait=600)
    return snapshot.raise_for_state().value


def _floor(ask: str, serve: str, kind: str, count: int) -> list[float]:
    """Return the times of so many round trips through a relay, in ms."""
    asker, far = socket.socketpair()
    near, server = socket.socketpair()
    processes = [_python(_RELAY, [far, near], kind), _python(serve, [server])]
    asking = _python(ask, [asker], str(count), _ASK_SCRIPT, stdout=subprocess.PIPE)
    for one in (asker, far, near, server):
        one.close()
    output, _ = asking.communicate()
    for process in processes:
        process.wait(10)
    took: list[float] = json.loads(output)
    return took[count // 10 :]  # without those of the start


def _python(code: str, ends: list[socket.socket], *more: str, **options: Any) -> Any:
    numbers = [one.fileno() for one in ends]
    argv = [sys.executable, "-I", "-c", code, *map(str, numbers), *more]
    return subprocess.Popen(argv, pass_fds=numbers, **options)
