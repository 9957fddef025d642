"""Hostile JavaScript: the limit holds, the error names the cause, and the next execution is right."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from code_help import anonymous_bytes, js, private_bytes, status_of, value_of
from engine_help import events_of, keeper_pid, main_pid

from tenuto import Engine, Limits, Snapshot
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio
MB = 1 << 20
KEEPER_MOST = 96 * MB  # a keeper has 15 to 20, and its buffers are bounded
VM_MOST = 230 * MB  # 128 for the code, the image, and room for copies


def assert_keeper_flat(project: Project, snapshot: Snapshot) -> None:
    keeper = keeper_pid(project, snapshot.id)
    try:
        peak = int(status_of(keeper)["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        return  # gone already
    assert peak < KEEPER_MOST, f"the keeper had {peak >> 20} MB"


async def assert_next_is_right(engine: Engine) -> None:
    assert await value_of(engine, "[1, 2, 3].map(x => x * 14)[2]") == 42


ENDLESS = {
    "a loop": "for (;;);",
    "a loop that awaits": "for (;;) await null",
    "a promise flood": "(function f() { Promise.resolve().then(f) })(); await new Promise(() => {})",
    "a microtask flood": "(function f() { queueMicrotask(f) })(); await new Promise(() => {})",
    "a timer flood": "(function f() { setTimeout(f, 0); setImmediate(() => {}) })()",
    "an interval that never ends": "setInterval(() => {}, 1); 1",
    "a sparse sort": "const x = []; x[4294967290] = 1; x.length = 4294967295; x.sort()",
    "a sparse search": "const x = []; x.length = 4294967295; x.includes(7) || x.reverse()",
    "a regular expression": "/(a+)+$/.test('a'.repeat(40) + 'b')",
    "another regular expression": "/^(([a-z])+.)+[A-Z]([a-z])+$/.test('a'.repeat(60))",
    "an endless generator": "function* g() { for (;;) yield 1 }; for (const x of g());",
    "an endless iterator": "const [a] = {[Symbol.iterator]() { return {next() { for (;;); }} }}",
    "a getter that never returns": "({get a() { for (;;); }}).a",
    "a getter in the value": "({get then() { for (;;); }})",
    "a proxy in the log": "console.log(new Proxy({}, {ownKeys() { for (;;); }}))",
    "toString that never returns": "`${{toString() { for (;;); }}}`",
    "a thenable that never settles in a loop": "await {then() { for (;;); }}",
    "a loop in a finally": "try { throw 1 } finally { for (;;); }",
    "a loop that catches everything": "for (;;) { try { null.x } catch {} }",
    "clearing timers": "for (;;) clearTimeout(setTimeout(() => {}, 1e9))",
}


@pytest.mark.promise("C2", "X8")
@pytest.mark.parametrize("name", ENDLESS)
async def test_what_never_ends_is_handed_over_and_killed_when_asked(
    engine: Engine, project: Project, name: str
) -> None:
    snapshot = await engine.run(ENDLESS[name], language="js", wait=0.8)
    assert snapshot.running and snapshot.handed_over, (snapshot.state, snapshot.output)
    pid = main_pid(project, snapshot.id)
    assert private_bytes(pid) < VM_MOST
    killed = await engine.kill(snapshot.id)
    assert killed.state == "killed"
    assert not os.path.exists(f"/proc/{pid}")
    assert_keeper_flat(project, snapshot)
    await assert_next_is_right(engine)


BOMBS = {
    "an array": "const a = []; for (;;) a.push(a.length)",
    "arrays of arrays": "let a = []; for (;;) a = [a, a, new Array(1000).fill(a)]",
    "strings": "const a = []; for (;;) a.push('x'.repeat(10000) + a.length)",
    "a doubling string": "let s = 'x'; for (;;) { s += s; s.charCodeAt(s.length - 1) }",
    "ArrayBuffers": "const a = []; for (;;) a.push(new ArrayBuffer(1 << 20))",
    "filled typed arrays": "const a = []; for (;;) a.push(new Float64Array(1 << 17).fill(1))",
    "one huge ArrayBuffer": "new ArrayBuffer(1 << 30)",
    "a filled huge array": "new Array(2 ** 32 - 1).fill(1)",
    "Array.from": "Array.from({length: 2 ** 31})",
    "an endless spread": "[...{*[Symbol.iterator]() { for (;;) yield 'x'.repeat(1000) }}]",
    "a Map": "const m = new Map(); for (let i = 0;; i++) m.set(i, {i})",
    "closures": "let f = () => 0; for (;;) { const g = f; f = () => g() + 1 }",
    "promises that are kept": "const a = []; for (;;) a.push(new Promise(() => {}))",
    "timers": "for (;;) setTimeout(() => {}, 1e9)",
    "symbols": "const a = []; for (;;) a.push(Symbol('x'.repeat(1000)))",
    "properties": "const o = {}; for (let i = 0;; i++) o['key' + i] = i",
    "JSON": "const t = '[' + '1,'.repeat(2e7) + '1]'; JSON.parse(t)",
    "JSON.stringify": "const a = new Array(1e6).fill('x'.repeat(100)); JSON.stringify([a, a, a, a])",
    "a join": "new Array(1e5).fill('x'.repeat(1e4)).join('')",
    "padding": "'x'.padEnd(2 ** 29)",
    "replacement": "'x'.repeat(1e6).replaceAll('x', 'y'.repeat(1e4))",
    "a regular expression's matches": "[...'a'.repeat(5e6).matchAll(/a/g)]",
    "structuredClone": "let a = [1]; for (let i = 0; i < 40; i++) a = [...a, ...a]; structuredClone(a)",
    "caught again and again": "let a = []; for (;;) { try { a.push(new Array(1e5).fill(7)) } "
    "catch (e) { globalThis.keep = a; throw e } }",
    "in a promise": "await (async () => { const a = []; "
    "for (;;) { await 0; a.push('y'.repeat(1e6)) } })()",
    "in a timer": "setTimeout(() => { const a = []; for (;;) a.push(new Array(1e4).fill(1)) }, 1)",
}


@pytest.mark.promise("C2")
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.full) if one == "replacement" else one for one in BOMBS],
)
async def test_a_memory_bomb_ends_at_its_limit(engine: Engine, project: Project, name: str) -> None:
    snapshot = await js(engine, BOMBS[name])
    assert (snapshot.state, snapshot.reason) == ("failed", "limit"), (
        snapshot.detail,
        snapshot.output,
    )
    assert "memory" in snapshot.detail and "128" in snapshot.detail
    assert snapshot.usage.max_rss < VM_MOST
    assert_keeper_flat(project, snapshot)
    await assert_next_is_right(engine)


ERRORS = {
    "recursion": ("(function f() { f() })()", "RangeError"),
    "mutual recursion": ("const a = () => b(), b = () => a(); a()", "RangeError"),
    "recursion in a getter": ("const o = {get a() { return this.a }}; o.a", "RangeError"),
    "recursion in a proxy": (
        "const p = new Proxy({}, {get: (t, k, r) => r[k]}); p.x",
        "RangeError",
    ),
    "recursion in toString": ("const o = {toString() { return `${this}` }}; `${o}`", "RangeError"),
    "recursion in JSON": (
        "const o = {toJSON() { return {a: o} }}; JSON.stringify(o)",
        "RangeError",
    ),
    "recursion in eval": ("globalThis.f = () => eval('f()'); f()", "RangeError"),
    "a deep value to clone": (
        "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; structuredClone(a)",
        "RangeError",
    ),
    "a deep value to stringify": (
        "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; JSON.stringify(a)",
        "RangeError",
    ),
    "deep JSON": ("JSON.parse('['.repeat(1e6))", "SyntaxError|RangeError"),
    "deep source": ("eval('('.repeat(1e5))", "SyntaxError|RangeError"),
    "a deep regular expression": ("new RegExp('('.repeat(1e5))", "SyntaxError|RangeError"),
    "a huge BigInt": ("2n ** (2n ** 40n)", "RangeError|InternalError"),
    "Atomics.wait": ("Atomics.wait(new Int32Array(new SharedArrayBuffer(8)), 0, 0)", "TypeError"),
    "a huge length": ("new Array(-1)", "RangeError"),
    "a huge repeat": ("'x'.repeat(2 ** 40)", "RangeError|InternalError"),
    "throwing nothing": ("throw undefined", "Error"),
    "throwing null": ("throw null", "Error"),
    "throwing a proxy": ("throw new Proxy(Error('x'), {get() { throw 1 }})", "Error"),
    "an error that throws when read": (
        "const e = new Error('x'); Object.defineProperty(e, 'stack', {get() { throw 1 }}); "
        "Object.defineProperty(e, 'message', {get() { throw 2 }}); throw e",
        "Error",
    ),
    "an error with a huge message": ("throw new Error('x'.repeat(5e6))", "Error"),
    "an error with a huge stack": (
        "const e = new Error('x'); e.stack = '    at y (<input>:1:1)\\n'.repeat(1e5); throw e",
        "Error",
    ),
    "an error with forged lines": (
        "const e = new TypeError('x'); e.stack = '    at a (<input>:-5:99999999999999)'; throw e",
        "TypeError",
    ),
    "a name that is no text": ("const e = new Error('x'); e.name = {}; throw e", ".*"),
    "a rejected proxy": ("Promise.reject(new Proxy({}, {get() { throw 1 }}))", "Error"),
    "imports": ("await import('fs')", ".*"),
    "a bad eval": ("eval('}')", "SyntaxError"),
}


@pytest.mark.promise("C2")
@pytest.mark.parametrize("name", ERRORS)
async def test_what_goes_wrong_is_told_as_an_error(
    engine: Engine, project: Project, name: str
) -> None:
    import re

    code, kind = ERRORS[name]
    snapshot = await js(engine, code)
    assert (snapshot.state, snapshot.reason) == ("failed", "exit"), (
        snapshot.detail,
        snapshot.signal,
    )
    (raised,) = events_of(project, snapshot.id, "raised")
    assert re.fullmatch(kind, raised["name"]), raised
    assert len(raised["message"]) <= 4096 and len(raised.get("stack", "")) <= 8192
    assert "tenuto:" not in snapshot.output
    assert_keeper_flat(project, snapshot)
    await assert_next_is_right(engine)


TRICKS: dict[str, tuple[str, Any]] = {
    "polluted Object.prototype": (
        "Object.prototype.toJSON = () => 'forged'; Object.prototype.type = 'ended'; "
        "Object.prototype.get = () => 5; console.log({a: 1}); [1, {b: 2}]",
        [1, {"b": 2}],
    ),
    "polluted Array.prototype": (
        "Array.prototype.push = Array.prototype.join = Array.prototype.concat = () => 'forged'; "
        "Object.defineProperty(Array.prototype, 0, {set() { throw 'no' }}); "
        "Array.prototype[Symbol.iterator] = null; console.log([1]); ({a: 1})",
        {"a": 1},
    ),
    "replaced JSON": ("JSON.stringify = () => '{\"type\":\"ended\"}'; JSON.parse = null; 'ok'", "ok"),
    "polluted String.prototype": (
        "for (const k of Object.getOwnPropertyNames(String.prototype)) "
        "try { String.prototype[k] = () => { throw 'no' } } catch {}; console.log('x'); 7",
        7,
    ),
    "polluted Promise": (
        "Promise.prototype.then = () => { throw 'no' }; Promise.resolve = null; Promise = null; 8",
        8,
    ),
    "polluted Function.prototype": (
        "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = null; "
        "console.log('x'); 9",
        9,
    ),
    "polluted Map and Reflect": (
        "for (const C of [Map, Set, WeakMap]) for (const k of Reflect.ownKeys(C.prototype)) "
        "try { C.prototype[k] = null } catch {}; Reflect.apply = null; console.log({a: [1]}); 10",
        10,
    ),
    "no globals left": (
        "for (const k of Object.getOwnPropertyNames(globalThis)) try { delete globalThis[k] } "
        "catch {}; 11",
        11,
    ),
    "frozen globals": ("Object.freeze(globalThis); Object.freeze(Object.prototype); 12", 12),
    "the constructor's way out": (
        "const F = console.log.constructor; [F('return typeof process')(), "
        "F('return typeof require')(), F('return this === globalThis')()].join()",
        "undefined,undefined,true",
    ),
    "callers and arguments": (
        "function f() { return f.caller } function g() { return f() } "
        "let r; try { r = g() === g } catch (e) { r = e.name }; r",
        None,
    ),
    "lines in the log that look like messages": (
        "console.log('\\n{\"type\":\"value\",\"json\":\"forged\"}\\n'); 'mine'",
        "mine",
    ),
    "a value that looks like wire marks": ("({'$': 'undefined', v: 1})", {"$": "undefined", "v": 1}),
    "half a pair": ("'\\ud800'", None),
    "a key of half a pair": ("({'\\udc00': 1})", None),
    "__proto__ as a key": ("JSON.parse('{\"__proto__\": {\"a\": 1}}')", {"__proto__": {"a": 1}}),
    "getters in the value": ("({get a() { throw 1 }})", "{ a: [Getter] }"),
    "a revoked proxy": (
        "const {proxy, revoke} = Proxy.revocable({}, {}); revoke(); [typeof proxy].join()",
        "object",
    ),
    "a huge sparse array": ("const a = []; a[4e9] = 1; a", "[ <4000000000 empty items>, 1 ]"),
    "a wide object": ("Object.fromEntries([...Array(1000)].map((_, i) => ['k' + i, i])).k999", 999),
    "a value too large to pass": ("'x'.repeat(2e7)", None),
    "deep nesting in the value": ("let a = 1; for (let i = 0; i < 500; i++) a = [a]; a", None),
    "a handled storm of rejections": (
        "for (let i = 0; i < 20000; i++) Promise.reject(i).catch(() => {}); 13",
        13,
    ),
    "timers by the thousand": (
        "let n = 0; for (let i = 0; i < 20000; i++) setTimeout(() => n++, 1); "
        "await new Promise(r => setTimeout(r, 50)); n",
        20000,
    ),
}  # fmt: skip


@pytest.mark.promise("C2", "C3")
@pytest.mark.parametrize("name", TRICKS)
async def test_tricks_change_nothing_but_the_tricksters_own_view(
    engine: Engine, project: Project, name: str
) -> None:
    code, value = TRICKS[name]
    snapshot = await js(engine, code)
    assert snapshot, (snapshot.reason, snapshot.detail, snapshot.output)
    if value is not None:
        assert snapshot.value == value
    assert snapshot.value != "forged"
    assert_keeper_flat(project, snapshot)
    await assert_next_is_right(engine)


@pytest.mark.promise("C2", "X6")
async def test_a_log_flood_is_held_back_and_the_keeper_stays_small(
    engine: Engine, project: Project
) -> None:
    for code in (
        "for (;;) console.log('x')",
        "for (let i = 0;; i++) console.log('y'.repeat(5000) + i)",
    ):
        snapshot = await engine.run(code, language="js", wait=2)
        assert snapshot.running
        keeper = keeper_pid(project, snapshot.id)
        assert int(status_of(keeper)["VmRSS"].split()[0]) * 1024 < KEEPER_MOST
        killed = await engine.kill(snapshot.id)
        assert killed.state == "killed"
        await engine.clear(snapshot.id)
        await assert_next_is_right(engine)


@pytest.mark.promise("C2", "X6")
async def test_the_output_quota_counts_what_is_logged(engine: Engine, project: Project) -> None:
    code = "for (let i = 0; i < 100000; i++) console.log('line ' + i); 'end'"
    quota = Limits(output=100_000, output_policy="fail")
    failed = await engine.run(code, language="js", limits=quota, wait=60)
    assert (failed.state, failed.reason) == ("failed", "limit"), failed
    assert "output" in failed.detail
    held = await engine.run(code, language="js", limits=Limits(output=100_000), wait=60)
    assert held.running and str(held.waiting_for) == "disk", held.state
    for _ in range(100):  # each time the history is cleared there is room for more
        await engine.clear(held.id)
        held = await engine.wait(held.id, 60)
        if held.done:
            break
    assert held and held.value == "end", (held.state, held.detail)


@pytest.mark.promise("C2")
async def test_limits_are_named_with_what_was_asked_for(engine: Engine) -> None:
    bomb = "const a = []; for (;;) a.push(new Array(1000).fill(1))"
    small = await js(engine, bomb, limits=Limits(memory=16 * MB))
    assert (small.reason, small.detail) == ("limit", "memory limit 16 MB")
    assert small.usage.max_rss < 80 * MB
    busy = await js(engine, "for (;;);", limits=Limits(cpu=1))
    assert busy.reason == "limit" and "cpu" in busy.detail and "1 s" in busy.detail
    roomy = await value_of(
        engine, "new Array(2.5e7).fill(1.5).length", limits=Limits(memory=1 << 30)
    )
    assert roomy == 25_000_000


@pytest.mark.promise("C2")
async def test_many_hostile_at_once_do_not_touch_a_neighbour(engine: Engine) -> None:
    hostile = [
        ENDLESS["a loop"],
        ENDLESS["a promise flood"],
        BOMBS["strings"],
        BOMBS["ArrayBuffers"],
    ]
    ids = [await engine.start(code, language="js") for code in hostile]
    values = await asyncio.gather(*(value_of(engine, f"{n} * 2") for n in range(20)))
    assert values == [n * 2 for n in range(20)]
    for one in ids:
        if (await engine.show(one)).running:
            await engine.kill(one)


async def soak(folder: Path, project: Project, number: int) -> None:
    async with Engine(str(folder)) as engine:
        await asyncio.gather(*(value_of(engine, f"{n} + 1") for n in range(16)))
        zygote = zygote_pid()
        before = len(os.listdir(f"/proc/{zygote}/fd")), anonymous_bytes(zygote)
        for begin in range(0, number, 50):
            codes = [
                f"{n} + 1" if n % 10 else "const a = []; for (;;) a.push('x'.repeat(1e5))"
                for n in range(begin, begin + 50)
            ]
            done = await asyncio.gather(*(js(engine, code) for code in codes))
            for n, one in zip(range(begin, begin + 50), done, strict=True):
                assert (one.value == n + 1) if n % 10 else (one.reason == "limit"), one
        after = len(os.listdir(f"/proc/{zygote}/fd")), anonymous_bytes(zygote)
        assert zygote_pid() == zygote, "the zygote died"
        assert after[0] == before[0], "descriptors leak"
        assert after[1] < before[1] + 2 * MB, "memory leaks"


def zygote_pid() -> int:
    """Our own engine's, by what only this test's processes were given; not that of another lane."""
    own = f"TENUTO_KEEPER_LOG={os.environ['TENUTO_KEEPER_LOG']}".encode()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                is_one = Path(f"/proc/{name}/comm").read_text() == "tenuto-zygote\n"
                if is_one and own in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
            except OSError:
                continue
    (pid,) = found
    return pid


@pytest.mark.promise("C2")
async def test_a_short_soak_leaves_the_zygote_flat(folder: Path, project: Project) -> None:
    await soak(folder, project, 100)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.promise("C2")
async def test_a_long_soak_leaves_the_zygote_flat(folder: Path, project: Project) -> None:
    await soak(folder, project, 10_000)


@pytest.mark.promise("C2")
async def test_many_waiting_vms_are_small(engine: Engine, project: Project) -> None:
    started = await asyncio.gather(
        *(engine.start("await readStdin()", language="js") for _ in range(20))
    )
    for one in started:
        snapshot = await engine.wait(one, 30)
        assert snapshot.needs_input
    sizes = [private_bytes(main_pid(project, one)) for one in started]
    assert sum(sizes) / len(sizes) <= 3 * MB, sizes
    for one in started:
        await engine.send(one, "x")
        assert (await engine.wait(one, 30)).value == "x"
