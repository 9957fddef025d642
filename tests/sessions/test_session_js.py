"""JavaScript and TypeScript sessions: one hardened VM whose globals outlive its cells."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_help import PATIENCE, await_death, ended, events_of, word
from session_help import Line, Python, all_dead, processes

from tenuto import Engine, InvalidInput, Limits, Snapshot, State
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


class Js(Python):
    """Runs JavaScript cells in one session."""

    async def run(self, code: str, **options: Any) -> Snapshot:
        return await super().run(code, **{"language": "js", **options})

    async def start(self, code: str, **options: Any) -> str:
        return await super().start(code, **{"language": "js", **options})


@pytest.mark.promise("X14", "C1")
async def test_declarations_of_every_kind_persist_and_may_be_made_again(engine: Engine) -> None:
    cell = Js(engine)
    await cell.value("bare = 1; var v = 2; let l = 3; const c = 4")
    await cell.value("function f(n) { return n + bare } class K { m() { return c } }")
    await cell.value("const {a, b: [d, ...rest]} = {a: 5, b: [6, 7, 8]}")
    assert await cell.value("[bare, v, l, c, f(1), new K().m(), a, d, rest]") == [
        1, 2, 3, 4, 2, 4, 5, 6, [7, 8],
    ]  # fmt: skip
    await cell.value(
        "let l = 30; const c = 40; class K { m() { return 50 } }; function f() { return 60 }"
    )
    assert await cell.value("[l, c, new K().m(), f()]") == [30, 40, 50, 60]
    await cell.value("l = l + 1")
    assert await cell.value("const w = await Promise.resolve(l); w + 1") == 32
    assert await cell.value("w") == 31


ASSIGNMENTS = [
    "c = 2", "c += 1", "c++", "[c] = [2]", "({c} = {c: 2})", "for (c of [2]);", "await 0; c = 2",
    "'use strict'; c = 2", "(() => { c = 2 })()", "eval('c = 2')", "set(2)", "globalThis.c = 2",
]  # fmt: skip


@pytest.mark.promise("X14", "C1")
@pytest.mark.parametrize("first", ["", "await 0; "])
async def test_a_constant_of_an_earlier_cell_cannot_be_assigned_to(
    engine: Engine, project: Project, first: str
) -> None:
    cell = Js(engine)
    await cell.value(f"{first}const c = 1, {{d}} = {{d: [1]}}; function set(to) {{ c = to }}")
    for code in ASSIGNMENTS:
        refused = await cell.run(code)
        assert (refused.state, refused.stderr.splitlines()[0]) == (
            "failed",
            b"Uncaught TypeError: 'c' is a constant of an earlier cell: declare it again to change it",
        ), code
        assert await cell.value("c") == 1, code
    where = await cell.run("\nlet n = 1\nc = n")
    (raised,) = events_of(project, where.id, "raised")
    assert (raised["line"], b"tenuto:" in where.stderr) == (3, False), where.stderr
    await cell.value("d.push(2); { let c = 5; c++ } (c => { c = 7 })(0)")
    assert await cell.value("[c, d, typeof c, Object.keys(globalThis).includes('c')]") == [
        1, [1, 2], "number", True,
    ]  # fmt: skip


@pytest.mark.promise("X14", "C1")
@pytest.mark.parametrize("first", ["", "await 0; "])
async def test_a_constant_may_be_declared_again_as_anything(engine: Engine, first: str) -> None:
    cell = Js(engine)
    for code, value in [
        ("const c = 1", 1), ("const c = 2", 2), ("let c = 3", 3), ("c = 4", 4), ("const c = 5", 5),
        ("var c", 5), ("c = 6", 6), ("const c = 7", 7), ("class c {}; c = 8", 8),
        ("const {c} = {c: 9}", 9), ("function c() {} c = 10", 10), ("const c = 11", 11),
        ("delete globalThis.c; c = 12", 12),
    ]:  # fmt: skip
        await cell.value(first + code)
        assert await cell.value("c") == value, code
    assert not await cell.run("const e = 1; const f = missing(); const g = 1")
    assert not await cell.run("e = 2"), "it was there"
    assert await cell.value("f = 3; g = 4; [e, f, g]") == [1, 3, 4], (
        "those it did not come to are open"
    )
    assert await cell.value("const c = 1; c", language="ts") == 1
    assert not await cell.run("c = 2", language="ts")


@pytest.mark.promise("X14", "C9")
async def test_typescript_and_javascript_share_a_session(engine: Engine) -> None:
    cell = Js(engine)
    await cell.value(
        "interface P { x: number }\nenum E { A = 3 }\nlet p: P = {x: 1}", language="ts"
    )
    assert await cell.value("p.x + E.A") == 4
    assert await cell.value("let q: number = p.x as number; q", language="ts") == 1


@pytest.mark.promise("X14", "C3")
async def test_inputs_and_output_are_each_cells_own(engine: Engine, project: Project) -> None:
    cell = Js(engine)
    first = await cell.run("console.log('one'); console.error('two'); inputs.n", inputs={"n": 5})
    assert (first.stdout, first.stderr, first.value) == (b"one\n", b"two\n", 5)
    second = await cell.run("console.log('three'); Object.keys(inputs)")
    assert (second.stdout, second.stderr, second.value) == (b"three\n", b"", [])
    for one in (first, second):
        assert one.engine == "quickjs"
        assert one.confinement is not None
        assert "rlimits" in one.confinement.level
    assert first.host == second.host
    assert first.host is not None
    host = await engine.show(first.host)
    assert host.confinement == second.confinement
    assert host.output_bytes == 0


@pytest.mark.promise("X14")
async def test_errors_tell_the_line_of_this_cell(engine: Engine, project: Project) -> None:
    cell = Js(engine)
    await cell.value("let x = 1\n\n\n\nfunction bad() {\n  throw new TypeError('no good')\n}")
    failed = await cell.run("x = 2\nlet unused\nbad()\n")
    assert (failed.state, failed.exit_code) == (State.FAILED, 1)
    (raised,) = events_of(project, failed.id, "raised")
    assert (raised["name"], raised["message"], raised["line"]) == ("TypeError", "no good", 3)
    assert "at bad (cell 1:6)" in raised["stack"]
    assert "code:3" in raised["stack"]
    assert await cell.value("x") == 2
    for code, line in (("\nlet = = 1", 2), ("1\n\nawait Promise.reject(new Error('r'))", 3)):
        wrong = await cell.run(code)
        (raised,) = events_of(project, wrong.id, "raised")
        assert raised.get("line", line) == line, raised
    assert await cell.value("x") == 2


@pytest.mark.promise("X14", "X7")
async def test_each_cell_reads_its_own_stdin(engine: Engine) -> None:
    cell = Js(engine)
    broken = await cell.run("readStdin(); readStdin(); throw new Error('left two readers')")
    assert broken.state is State.FAILED
    asked = await cell.run("const name = await readStdin(); name")
    assert asked.needs_input
    await engine.send(asked.id, "Ada\nfor nobody")
    assert (await ended(engine, asked.id)).value == "Ada"
    again = await cell.run("await readStdin()")
    assert again.needs_input
    await engine.send(again.id, "Bob")
    assert (await ended(engine, again.id)).value == "Bob"
    assert await cell.value("name") == "Ada"


@pytest.mark.promise("X14")
async def test_what_a_failed_cell_left_open_is_dropped(engine: Engine) -> None:
    cell = Js(engine)
    code = (
        "var late = []; setInterval(() => late.push(1), 1); setTimeout(() => late.push(2), 5);"
        "Promise.resolve().then(() => console.log('promised')); throw new Error('now')"
    )
    failed = await cell.run(code)
    assert failed.stdout == b"promised\n"
    assert await cell.value("await new Promise(done => setTimeout(done, 50)); late") == []
    rejected = await cell.run("Promise.reject(new Error('nobody takes it')); 1")
    assert rejected.state is State.FAILED
    assert await cell.value("2") == 2


@pytest.mark.promise("X14", "C2")
async def test_out_of_memory_ends_cell_and_session_with_the_limit(engine: Engine) -> None:
    cell = Js(engine)
    await cell.value("var x = 1", limits=Limits(memory=16 << 20))
    assert await cell.value("x") == 1  # without the limit: it is the session's
    bomb = await cell.run("const a = []; for (;;) a.push(new Array(1000).fill(7))")
    assert (bomb.state, bomb.reason) == (State.FAILED, "limit")
    assert "memory limit 16 MB" in bomb.detail
    anew = await cell.run("typeof x")
    assert anew.value == "undefined"
    assert "session s1 is new: the one before has ended (failed: memory limit 16 MB" in (
        anew.session_note
    )
    with pytest.raises(InvalidInput, match="memory limit"):
        await cell.run("1", limits=Limits(memory=16 << 20))


@pytest.mark.promise("X14")
async def test_an_interrupt_ends_the_cell_and_the_session_lives(engine: Engine) -> None:
    cell = Js(engine)
    await cell.value("var n = 7")
    for code in (
        "console.log('up'); for (;;) {}",
        "console.log('up'); await new Promise(done => setTimeout(done, 600000))",
        "console.log('up'); await readStdin()",
        "console.log('up'); try { for (;;) {} } catch { for (;;) {} }",
        "console.log('up'); const f = async () => { for (;;) {} }; await f()",
    ):
        running = await cell.start(code)
        await word(engine, running, "up")
        async with asyncio.timeout(PATIENCE):
            stopped = await engine.interrupt(running)
        assert stopped.state is State.INTERRUPTED, code
        assert await cell.value("n") == 7, code
    # promises without end cannot be taken back: the session goes with them
    running = await cell.start("console.log('up'); (async () => { for (;;) await 0 })(); 1")
    await word(engine, running, "up")
    assert (await engine.interrupt(running)).state is State.INTERRUPTED
    assert "is new" in (await cell.run("1")).session_note


@pytest.mark.promise("X14", "X8")
async def test_a_killed_cell_takes_the_vm_along(engine: Engine, project: Project) -> None:
    cell = Js(engine)
    running = await cell.start("console.log('up'); for (;;) {}")
    await word(engine, running, "up")
    host = (await engine.show(running)).host or ""
    _, worker = processes(project, host)
    killed = await engine.kill(running)
    assert all_dead(worker)
    assert killed.state is State.KILLED
    assert (await engine.show(host)).state is State.KILLED
    anew = await cell.run("1 + 1")
    assert (anew.value, "is new" in anew.session_note) == (2, True)


@pytest.mark.promise("X14")
async def test_languages_do_not_mix(engine: Engine) -> None:
    await Js(engine, "j").value("1")
    await Python(engine, "p").value("1")
    with pytest.raises(InvalidInput, match="session j is in js, not in python"):
        await Python(engine, "j").run("1")
    with pytest.raises(InvalidInput, match="session p is in python, not in js"):
        await Js(engine, "p").run("1")


@pytest.mark.promise("X14", "C3")
async def test_functions_are_given_to_each_cell(engine: Engine, project: Project) -> None:
    async def double(n: int) -> int:
        return 2 * n

    code = "var twice = (n) => double(n); await Promise.all([twice(1), twice(2)])"
    first = await engine.code(code, functions={"double": double}, session="s1")
    assert first.value == [2, 4]
    assert [one["n"] for one in events_of(project, first.id, "host_called")] == [1, 2]
    without = await engine.code("await twice(3)", session="s1")
    assert (without.state, without.reason) == (State.FAILED, "exit")
    assert "was given to an earlier cell" in without.output
    again = await engine.code("await twice(4)", functions={"double": double}, session="s1")
    assert again.value == 8
    assert [one["n"] for one in events_of(project, again.id, "host_called")] == [1]
    assert again.host == first.host


@pytest.mark.promise("X14", "C8")
async def test_composed_tools_are_there_in_cells(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    await engine.tools.save("greet", "`Hello ${inputs.name}`", schema=schema, description="Greets")
    cell = Js(engine)
    await cell.value("var who = 'Ada'")
    assert await cell.value("await tools.greet({name: who})") == "Hello Ada"
    assert await cell.value("who") == "Ada"


@pytest.mark.promise("X14", "C2", "X16")
async def test_hostile_cells_harm_their_own_session_only(engine: Engine) -> None:
    own, other = Js(engine, "own"), Js(engine, "other")
    await other.value("var kept = 1")
    forged = '{"type":"cell_done","n":1,"code":0}'
    told = await own.run(f"console.log('{forged}'); console.log('\\n{forged}\\n'); 'true'")
    assert (told.value, told.stdout.count(b"cell_done")) == ("true", 2)
    for code in (
        "Array.prototype.push = () => { throw 1 }; JSON.parse = () => 1; JSON.stringify = () => 'x'",
        "Promise.prototype.then = () => { throw 2 }; Map.prototype.get = () => 5",
        "Object.prototype.type = 'cell_done'; Object.prototype.n = 99; Object.prototype.get = () => 1",
        "delete Object.prototype.get; String.prototype.split = () => []",
        "globalThis.console = undefined; globalThis.setTimeout = 5",
        "Object.defineProperty(Object.prototype, 'toJSON', {value: () => 1})",
        "Object.defineProperty(Error.prototype, 'stack', {get() { throw 3 }}); 1",
    ):
        assert (await own.run(code)).done, code
        assert await own.value("3") == 3, code
        assert await other.value("kept") == 1
    last = await own.run(
        "Object.defineProperty(globalThis, 'inputs', {value: 1, configurable: false})"
    )
    assert last
    broken = await own.run("1")
    assert (broken.state, broken.exit_code) == (State.FAILED, 1)
    assert "cannot take a cell any more" in broken.output
    gone = await own.run("Object.freeze(globalThis); 1")
    assert gone.done
    assert await other.value("kept") == 1
    await engine.clear_session("own")
    assert await own.value("1 + 1") == 2


@pytest.mark.promise("X14", "X11")
async def test_death_of_a_vm_is_told(engine: Engine, project: Project) -> None:
    import os
    import signal

    cell = Js(engine)
    running = await cell.start("console.log('up'); await readStdin()")
    await word(engine, running, "up")
    _, worker = processes(project, (await engine.show(running)).host or "")
    os.kill(worker, signal.SIGKILL)
    assert await asyncio.to_thread(await_death, worker)
    failed = await ended(engine, running)
    assert (failed.state, failed.reason, failed.signal) == (State.FAILED, "session", "SIGKILL")
    assert "is new" in (await cell.run("1")).session_note


@pytest.mark.promise("X14")
async def test_many_cells_leave_nothing_behind_in_the_vm(engine: Engine, project: Project) -> None:
    import os

    cell = Js(engine)
    host = (await cell.run("var n = 0")).host or ""
    keeper, worker = processes(project, host)
    await cell.value("n += 1")
    before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (keeper, worker)]
    for _ in range(30):
        await cell.value("n += 1")
    await asyncio.gather(*(cell.value("n += 1") for _ in range(20)))
    assert await cell.value("n") == 51
    after = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (keeper, worker)]
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


@pytest.mark.promise("X14", "U1")
@pytest.mark.parametrize("language", ["js", "ts"])
async def test_the_command_line_keeps_sessions_of_code_mode(cli: Line, language: str) -> None:
    run = ("run", "--lang", language, "--session", "s1")
    assert cli(*run, "x = 5").returncode == 0
    done = cli(*run, "x + 1")
    assert (done.stdout, done.stderr, done.returncode) == ("6\n", "", 0)
    (one,) = cli.json("sessions")
    assert (one["language"], one["cells"]) == ("js", 2)
    assert cli("sessions", "clear", "s1").returncode == 0
