"""Hostile code in the deno engine: the limit holds, the error names it, and the next one is right."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from deno_help import FULL, OWN_MEMORY, deno, raised, ready_process, value_of
from engine_help import main_pid

from tenuto import Engine, Limits, Settings
from tenuto.core.states import State
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("C9")]

ENDLESS = {
    "loop": "for (;;);",
    "regular expression": "/^(a+)+$/.test('a'.repeat(50) + '!')",
    "promise flood": "const f = () => Promise.resolve().then(f); f(); await new Promise(() => {})",
    "timer flood": "const f = () => { setTimeout(f); setTimeout(f) }; f()",
    "sparse sort": "const x = []; x[4294967290] = 1; x.length = 4294967295; x.sort()",
    "atomic wait": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "getter": "({ get x() { for (;;); } }).x",
    "value that loops": "new Proxy({}, { ownKeys() { for (;;); } })",
    "log flood": "for (;;) console.log('x'.repeat(1000))",
}

BOMBS = {
    "array": "const x = []; for (;;) x.push(new Array(1e5).fill(1.5))",
    "objects": "const x = []; for (;;) x.push({ a: { b: {} } })",
    "string": "let s = 'x'; const all = []; for (;;) { s += s.slice(0, 1e6); all.push(s + all.length) }",
    "map": "const m = new Map(); for (let i = 0; ; i++) m.set(i, [i])",
    "buffer": "const x = []; for (;;) x.push(new Uint8Array(5e7).fill(1))",
    "shared buffer": "const x = []; for (;;) x.push(new Uint8Array(new SharedArrayBuffer(5e7)).fill(1))",
    "closure": "let f = 0; for (;;) { const g = f, big = new Array(1e4).fill(0); f = () => [big, g] }",
    "chain": "let f = {}; for (;;) f = { f }",
    # What is not in V8's heap: there it is a library that finds no memory, and says little or nothing.
    "big numbers": "let b = 1n; for (;;) b = b * b + 1n << 100n",
    "formats": "const x = []; for (;;) x.push(new Intl.DateTimeFormat('de'))",
    "copies": "const x = []; for (;;) x.push(structuredClone(new Uint8Array(1e6)))",
    "texts": "const x = [], s = 'é'.repeat(1e5); for (;;) x.push(new TextEncoder().encode(s))",
    "jobs": "const f = () => { for (let i = 0; i < 10; i++) Promise.resolve({ i }).then(f) };"
    " f(); await new Promise(() => {})",
    "buffers, caught": "const x = []; for (;;) try { x.push(new Uint8Array(1e6)) } catch { x.push({}) }",
}  # fmt: skip


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
async def test_what_never_ends_is_handed_over_and_dies_when_asked(
    engine: Engine, project: Project, code: str
) -> None:
    snapshot = await engine.run(f"console.log('on'); {code}", language="js", engine="deno", wait=0)
    snapshot = await engine.wait(snapshot.id, 60, until="on")
    assert snapshot.running, snapshot.output[:500]
    inside = [main_pid(project, snapshot.id), *procfs.descendants(main_pid(project, snapshot.id))]
    assert len(inside) >= 2
    await engine.kill(snapshot.id)
    snapshot = await engine.wait(snapshot.id, 20)
    assert snapshot.state is State.KILLED
    assert not [pid for pid in inside if procfs.start_time(pid)]
    assert await value_of(engine, "1 + 1") == 2


SLOW = ("chain", "buffers, caught", "map")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=name, marks=pytest.mark.full if name in SLOW else ())
        for name, code in BOMBS.items()
    ],
)
async def test_memory_is_bounded(engine: Engine, code: str) -> None:
    snapshot = await deno(engine, code, limits=Limits(memory=64 << 20))
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit"), snapshot.output
    assert "memory" in snapshot.detail and "64 MB" in snapshot.detail
    assert snapshot.usage.max_rss < 700 << 20
    assert await value_of(engine, "1 + 1") == 2


async def test_processor_time_is_bounded(engine: Engine) -> None:
    snapshot = await deno(engine, "for (;;);", limits=Limits(cpu=1))
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")
    assert "cpu" in snapshot.detail and "1 s" in snapshot.detail
    await value_of(engine, "1")
    snapshot = await deno(engine, "for (;;);", limits=Limits(cpu=1))  # one that was ready before
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")


async def test_output_is_bounded(engine: Engine) -> None:
    limits = Limits(output=1 << 20, output_policy="fail")
    snapshot = await deno(engine, "for (;;) console.log('x'.repeat(1000))", limits=limits)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")
    assert snapshot.output_bytes < 20 << 20


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("const f = () => f() + 1; f()", "RangeError"),
        ("'x'.repeat(2 ** 30)", "RangeError"),
        ("new Array(-1)", "RangeError"),
        ("throw { toString() { throw 1 }, get name() { throw 2 } }", "Error"),
        ("throw Object.defineProperty(new Error('m'), 'stack', { get() { throw 3 } })", "Error"),
        ("throw new Proxy(new Error('p'), { get() { throw 4 } })", "Error"),
    ],
)  # fmt: skip
async def test_errors_stay_errors(engine: Engine, project: Project, code: str, name: str) -> None:
    snapshot = await deno(engine, code)
    assert snapshot.exit_code == 1
    assert raised(project, snapshot.id)["name"] == name


async def test_a_giant_value_is_told_as_such(engine: Engine) -> None:
    assert "value too large" in await value_of(engine, "'x'.repeat(2e7)")


ABSENT = [
    "typeof Deno", "typeof process", "typeof require", "typeof Worker", "typeof fetch",
    "typeof WebSocket", "typeof localStorage", "typeof WebAssembly", "typeof Buffer", "typeof caches",
    "typeof this.constructor.constructor('return globalThis')().Deno",
    "typeof (function(){}).constructor('return typeof Deno === \"object\" ? Deno : undefined')()",
    "typeof globalThis.__bootstrap", "typeof (async () => {}).constructor('return Deno.core').Deno",
    "typeof Object.getPrototypeOf(globalThis).Deno", "typeof globalThis['tenuto kit']",
]  # fmt: skip


async def test_nothing_of_the_runtime_is_in_reach(engine: Engine) -> None:
    assert await value_of(engine, f"[{', '.join(ABSENT)}]") == ["undefined"] * len(ABSENT)


MODULES = [
    "node:fs", "node:process", "node:child_process", "node:net", "node:worker_threads", "node:vm",
    "node:module", "node:os", "node:v8", "node:inspector", "node:test", "node:sqlite", "fs",
    "file:///etc/passwd", "https://deno.land/x.ts", "npm:left-pad", "jsr:@std/path", "ext:core/ops",
    "data:text/javascript,export * from 'node:fs'", "./boot.js",
]  # fmt: skip


@pytest.mark.parametrize("language", ["js", "ts"])
async def test_no_module_can_be_had(engine: Engine, language: str) -> None:
    mark = "<any, any>" if language == "ts" else ""
    code = f"""
    const told = [];
    for (const name of {MODULES}) {{
      const one = import(name).then{mark}(() => 'loaded', (error) => typeof error.message);
      told.push(await one);
    }}
    told
    """
    told = await value_of(engine, code, language)
    assert dict(zip(MODULES, told, strict=True)) == dict.fromkeys(MODULES, "string")


async def test_stack_traces_give_no_functions_away(engine: Engine) -> None:
    code = """
    let sites = 'none';
    try { Error.prepareStackTrace = (_, all) => { sites = all; return '' } } catch {}
    try { null.x } catch (error) { error.stack }
    const shown = (one) => typeof one.getFunction() + typeof one.getThis();
    typeof sites === 'string' ? sites : sites.map(shown)
    """
    value = await value_of(engine, code)
    assert value == "none" or {*value} <= {"undefinedundefined"}, value


async def test_what_the_code_replaces_does_not_reach_us(engine: Engine, project: Project) -> None:
    code = """
    const bad = () => { throw new Error('replaced') };
    for (const name of ['push', 'map', 'join', 'indexOf', 'slice', 'then']) {
      for (const one of [Array, String, Promise, Uint8Array]) one.prototype[name] = bad;
    }
    JSON.stringify = JSON.parse = Reflect.apply = Object.defineProperty = bad;
    TextEncoder.prototype.encode = TextDecoder.prototype.decode = bad;
    Object.prototype.toJSON = bad; Object.prototype.type = 'limit';
    Uint8Array.prototype.set = Uint8Array.prototype.subarray = bad;
    console.log('still', { here: 1 });
    const line = await readStdin();
    await new Promise((resolve) => setTimeout(resolve, 5));
    ({ line })
    """
    snapshot = await engine.run(code, language="js", engine="deno", wait=0)
    await engine.send(snapshot.id, "x\n")
    snapshot = await engine.wait(snapshot.id, 60)
    assert snapshot, snapshot.output
    assert snapshot.output.startswith("still { here: 1 }")


async def test_the_system_holds_it_too(engine: Engine, project: Project, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("s")
    snapshot = await engine.run("await readStdin()", language="js", engine="deno", wait=0)
    snapshot = await engine.wait(snapshot.id, 60)
    (pid,) = procfs.descendants(main_pid(project, snapshot.id))
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1"
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    if os.geteuid() == 0:
        assert "0" not in status["Uid"].split()
    names = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert not [name for name in names if name.startswith("/") and not name.startswith("/dev/")], (
        names
    )
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"PATH=" not in environment and b"TENUTO" not in environment
    assert snapshot.confinement is not None and snapshot.confinement.level == FULL
    await engine.send(snapshot.id, "done\n")
    assert (await engine.wait(snapshot.id, 60)).value == "done"


@pytest.mark.parametrize("without", ["landlock", "seccomp", "user"])
async def test_what_is_missing_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setenv("TENUTO_TEST_WITHOUT", without)
    snapshot = await deno(engine, "1 + 1")
    assert snapshot.value == 2 and snapshot.confinement is not None
    (missing,) = snapshot.confinement.missing
    assert missing == f"{without} (turned off)", missing


async def test_the_death_of_the_process_is_told_as_what_it_is(
    engine: Engine, project: Project
) -> None:
    snapshot = await engine.run("await readStdin()", language="js", engine="deno", wait=0)
    await engine.wait(snapshot.id, 60)
    (pid,) = procfs.descendants(main_pid(project, snapshot.id))
    os.kill(pid, signal.SIGKILL)
    while not snapshot.done:
        snapshot = await engine.wait(snapshot.id, 1)
    assert snapshot.state is State.FAILED, (snapshot.reason, snapshot.detail)
    assert raised(project, snapshot.id)["message"] == "deno was ended by SIGKILL"


async def test_input_that_was_sent_is_not_waited_for(engine: Engine, project: Project) -> None:
    """However long deno takes to take it."""
    snapshot = await engine.run("await readStdin()", language="js", engine="deno", wait=0)
    assert (await engine.wait(snapshot.id, 60)).needs_input
    (pid,) = procfs.descendants(main_pid(project, snapshot.id))
    os.kill(pid, signal.SIGSTOP)
    await engine.send(snapshot.id, "late\n")
    snapshot = await engine.wait(snapshot.id, 0.5)  # several looks at it
    assert snapshot.running and not snapshot.needs_input
    os.kill(pid, signal.SIGCONT)
    assert (await engine.wait(snapshot.id, 60)).value == "late"


async def test_a_ready_process_that_died_is_replaced(folder: Path) -> None:
    async with Engine(str(folder), settings=Settings(code_memory=OWN_MEMORY)) as engine:
        await value_of(engine, "1")
        for _ in range(3):
            waiting = await asyncio.wait_for(ready_process(), 20)
            beside = procfs.parent(waiting)
            os.kill(waiting, signal.SIGKILL)
            while procfs.start_time(beside):  # who stands beside it ends with it
                await asyncio.sleep(0.01)
            assert await value_of(engine, "1 + 1") == 2
