"""Python sessions: what persists, and that each cell is an execution of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    await_death,
    begun,
    ended,
    events_of,
    folded,
    joined,
    number_after,
    output,
    word,
)
from session_help import Line, Python

from tenuto import Engine, InvalidInput, State
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("X14")
async def test_variables_functions_classes_and_imports_persist(engine: Engine) -> None:
    cell = Python(engine)
    assert await cell.value("x = 5\nx") == 5
    assert await cell.value("x + 1") == 6
    await cell.value("import math, os.path as path\ndef twice(n):\n    return 2 * n * x")
    await cell.value("class Point:\n    def __init__(self, a):\n        self.a = a\np = Point(3)")
    assert await cell.value("[twice(math.floor(4.5)), p.a, path.basename('/a/b')]") == [40, 3, "b"]
    await cell.value("x = 7")
    assert await cell.value("twice(1)") == 14
    assert await cell.value("from __future__ import annotations\n1") == 1
    await cell.value("def f(a: Nowhere): pass")  # the feature persists as well
    assert await cell.value("__name__") == "__main__"


@pytest.mark.promise("X14")
async def test_sessions_do_not_see_each_other(engine: Engine) -> None:
    one, two = Python(engine, "one"), Python(engine, "two")
    await one.value("x = 1")
    await two.value("x = 2")
    assert (await one.value("x"), await two.value("x")) == (1, 2)
    alone = await engine.run("x", language="python")
    assert alone.state is State.FAILED


@pytest.mark.promise("X14", "X1")
async def test_each_cell_is_an_execution_of_its_own(engine: Engine, project: Project) -> None:
    cell = Python(engine)
    first = await cell.run("print('one'); 1", title="the first")
    second = await cell.run("import sys; print('two'); print('three', file=sys.stderr)")
    assert first.id != second.id
    assert first.title == "the first"
    assert (first.stdout, first.stderr, first.value) == (b"one\n", b"", 1)
    assert (second.stdout, second.stderr, second.has_value) == (b"two\n", b"three\n", False)
    assert (first.session, first.host) == ("s1", second.host)
    host = await engine.show(first.host or "")
    assert host.running
    assert host.session_host
    assert host.output_bytes == 0
    assert events_of(project, first.id, "enqueued")


@pytest.mark.promise("X14")
async def test_output_by_descriptor_subprocess_and_c_is_the_cells(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("import os, subprocess, ctypes")
    told = await cell.run("os.write(1, b'by number\\n'); os.write(2, b'two\\n')")
    assert told.stdout == b"by number\n"
    assert told.stderr == b"two\n"
    assert (await cell.run("_ = subprocess.run(['echo', 'child'])")).stdout == b"child\n"
    assert (await cell.run("_ = os.system('echo system')")).stdout == b"system\n"
    buffered = await cell.run("_ = ctypes.CDLL(None).printf(b'in the buffer of C')")
    assert buffered.stdout == b"in the buffer of C"
    assert (await cell.run("1")).stdout == b""


@pytest.mark.promise("X14")
async def test_output_between_cells_stands_on_the_tape_of_the_session(engine: Engine) -> None:
    cell = Python(engine)
    code = (
        "import threading\n"
        "go = threading.Event()\n"
        "def late():\n"
        "    go.wait()\n"
        "    print('late', flush=True)\n"
        "threading.Thread(target=late, daemon=True).start()\n"
        "print('early')\n"
        "threading.Timer(0.2, go.set).start()\n"
    )
    told = await cell.run(code)
    assert told.stdout == b"early\n"
    await word(engine, told.host or "", "late")
    assert joined(await engine.logs(told.id)) == b"early\n"


@pytest.mark.promise("X14", "X7")
async def test_input_asks_the_cells_own_stdin(engine: Engine, project: Project) -> None:
    cell = Python(engine)
    asked = await cell.run("name = input('who? ')", wait=PATIENCE)
    assert asked.needs_input, asked.state
    assert asked.output == "who? "
    assert await engine.send(asked.id, "Ada\nnever read by this one") == "delivered"
    assert await ended(engine, asked.id)
    assert await cell.value("name") == "Ada"
    again = await cell.run("import sys; sys.stdin.readline()")
    assert again.needs_input  # what the first was sent too much is not here
    await engine.send(again.id, "second")
    assert (await ended(engine, again.id)).value == "second\n"
    host = folded(project, asked.host or "")
    assert not any(one.state is State.WAITING for one in host.transitions)


@pytest.mark.promise("X14")
async def test_a_cell_that_raises_fails_with_its_line_and_the_session_lives(
    engine: Engine, project: Project
) -> None:
    cell = Python(engine)
    await cell.value("x = 1\n\n\n\n\ndef bad():\n    raise ValueError('no good')")
    failed = await cell.run("y = 2\nbad()\n")
    assert (failed.state, failed.exit_code, failed.reason) == (State.FAILED, 1, "exit")
    (raised,) = events_of(project, failed.id, "raised")
    assert (raised["name"], raised["message"], raised["line"]) == ("ValueError", "no good", 2)
    assert "raise ValueError('no good')" in failed.output  # the source of an earlier cell
    assert "python_session" not in failed.output
    assert await cell.value("x + y") == 3
    wrong = await cell.run("1\n1 +\n")
    (raised,) = events_of(project, wrong.id, "raised")
    assert (raised["name"], raised["line"]) == ("SyntaxError", 2)


@pytest.mark.promise("X14")
async def test_exits_end_the_cell_only(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("x = 1; import sys, os")
    left = await cell.run("sys.exit(3)")
    assert (left.state, left.exit_code) == (State.FAILED, 3)
    assert (await cell.run("exit()")).state is State.SUCCEEDED
    said = await cell.run("sys.exit('because')")
    assert (said.exit_code, said.stderr) == (1, b"because\n")
    forked = "pid = os.fork()\nprint('child' if pid == 0 else os.waitpid(pid, 0)[1])"
    assert sorted((await cell.run(forked)).output.split()) == ["0", "child"]
    assert await cell.value("x") == 1


@pytest.mark.promise("X14")
async def test_awaiting_cells_share_one_loop(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("import asyncio\nasync def work():\n    await asyncio.sleep(0)\n    return 4")
    assert await cell.value("await work()") == 4
    await cell.value("task = asyncio.create_task(work())\nawait asyncio.sleep(0)")
    assert await cell.value("await task") == 4


@pytest.mark.promise("X14", "X3")
async def test_cells_of_a_session_run_in_order_and_others_beside(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("said = []")
    first = await cell.start("input(); said.append(1)")
    second = await cell.start("said.append(2)")
    third = await cell.start("said.append(3)")
    assert (await engine.wait(second, 0.05)).state is State.QUEUED
    assert (await engine.wait(third, 0)).handed_over
    assert await Python(engine, "other").value("'free'") == "free"
    assert (await engine.run("1", language="python")).value == 1
    (session, _) = await engine.sessions()
    assert (session.name, session.state, session.current) == ("s1", "busy", first)
    assert session.queued == (second, third)
    assert session.memory > 1_000_000
    await engine.send(first, "")
    await engine.send(first, "go")
    assert await ended(engine, third)
    assert await cell.value("said") == [1, 2, 3]


@pytest.mark.promise("X14")
async def test_many_at_once_are_all_served(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("n = 0")
    await asyncio.gather(*(cell.value("n += 1") for _ in range(40)))
    assert await cell.value("n") == 40


@pytest.mark.promise("X14", "X3")
async def test_a_long_cell_is_handed_over(engine: Engine) -> None:
    cell = Python(engine)
    moved = await cell.run("print('busy', flush=True)\nwhile True: pass", wait=0.5)
    assert moved.handed_over
    assert moved.is_async
    await word(engine, moved.id, "busy")


@pytest.mark.promise("X14", "X8")
async def test_a_child_that_outlives_its_cell_keeps_writing_to_it(
    engine: Engine, folder: Path
) -> None:
    cell = Python(engine)
    await cell.value("import subprocess")
    code = "child = subprocess.Popen(['sh', '-c', 'echo here; read x < go; echo $x'])\nchild.pid"
    os.mkfifo(folder / "go")
    told = await cell.run(code)
    assert [left.pid for left in told.left_behind] == [told.value]
    await cell.value("1")
    with open(folder / "go", "w") as go:
        go.write("later\n")
    assert await asyncio.to_thread(await_death, told.value)
    async with asyncio.timeout(PATIENCE):
        while (await engine.show(told.id)).left_behind:  # its keeper looks now and then
            await asyncio.sleep(0.02)
    assert await output(engine, told.id) == b"here\nlater\n"

    more = await cell.run("child = subprocess.Popen(['sleep', '600']); child.pid")
    assert more.left_behind
    await engine.kill(more.id)  # only what it left: the session goes on
    assert await asyncio.to_thread(await_death, more.value)
    assert (await cell.run("child.wait()")).value == -9


@pytest.mark.promise("X14")
async def test_the_folder_is_the_sessions_unless_a_cell_names_one(
    engine: Engine, folder: Path
) -> None:
    cell = Python(engine)
    (folder / "sub").mkdir()
    await cell.value("import os")
    assert await cell.value("os.getcwd()") == str(folder)
    assert await cell.value("os.getcwd()", cwd="sub") == str(folder / "sub")
    assert await cell.value("os.getcwd()") == str(folder / "sub")
    with pytest.raises(InvalidInput, match="does not exist"):
        await cell.run("1", cwd="nowhere")


@pytest.mark.promise("X14")
async def test_what_cannot_be_changed_is_refused(engine: Engine) -> None:
    from tenuto import Limits

    cell = Python(engine)
    limits = Limits(memory=2 << 30)
    await cell.value("import os", env={"COLOUR": "red"}, limits=limits)
    assert await cell.value("os.environ['COLOUR']", env={"COLOUR": "red"}) == "red"
    assert await cell.value("1", limits=limits) == 1
    with pytest.raises(InvalidInput, match="environment is fixed, and differs in COLOUR"):
        await cell.run("1", env={"COLOUR": "blue"})
    with pytest.raises(InvalidInput, match="memory limit"):
        await cell.run("1", limits=Limits(memory=1 << 30))
    with pytest.raises(InvalidInput, match="terminal"):
        await cell.run("1", pty=True)
    with pytest.raises(InvalidInput, match="no sessions in bash"):
        await engine.run("1", language="bash", session="b")
    with pytest.raises(InvalidInput, match="a command has no session"):
        await engine.run(command=["true"], session="s1")
    for name in ("", "../up", "a b", ".hidden", "x" * 65, "a/b"):
        with pytest.raises(InvalidInput, match="no name for a session"):
            await cell.run("1", session=name)


@pytest.mark.promise("X14")
async def test_what_a_cell_used_is_its_own(engine: Engine) -> None:
    cell = Python(engine)
    busy = await cell.run(
        "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    )
    assert 0.3 < busy.usage.user_s + busy.usage.system_s < 5
    idle = await cell.run("time.sleep(0.01)")
    assert idle.usage.user_s + idle.usage.system_s < 0.3
    assert idle.usage.max_rss > 5_000_000


@pytest.mark.promise("X14")
async def test_an_output_quota_holds_for_each_cell(engine: Engine) -> None:
    from tenuto import Limits

    cell = Python(engine)
    limits = Limits(output=1000, output_policy="fail")
    assert await cell.value("print('x' * 600)\n1", limits=limits) == 1
    assert await cell.value("print('x' * 600)\n2", limits=limits) == 2


@pytest.mark.promise("X14")
async def test_a_deadline_counts_from_the_cells_turn(engine: Engine) -> None:
    cell = Python(engine)
    first = await cell.start("input()")
    await begun(engine, first)
    second = await cell.start("print('mine=1;', flush=True)\nwhile True: pass", deadline=0.3)
    third = await cell.start("'never'")
    assert (await engine.wait(second, 0.5)).state is State.QUEUED
    await engine.send(first, "go")
    late = await ended(engine, second)
    assert (late.state, late.reason) == (State.FAILED, "deadline")
    assert await number_after(engine, second, "mine") == 1
    never = await ended(engine, third)
    assert (never.state, never.reason) == (State.FAILED, "session")
    assert "it never ran" in never.detail


@pytest.mark.promise("X14", "U1")
async def test_the_command_line_keeps_sessions(cli: Line, folder: Path) -> None:
    assert cli("run", "--lang", "python", "--session", "s1", "x = 5").returncode == 0
    done = cli("run", "--lang", "python", "--session", "s1", "x + 1")
    assert (done.stdout, done.stderr, done.returncode) == ("6\n", "", 0)
    assert (
        cli("run", "--lang", "python", "--session", "s1", "import sys; sys.exit(4)").returncode == 4
    )
    (one,) = cli.json("sessions")
    assert (one["name"], one["language"], one["state"], one["cells"]) == ("s1", "python", "idle", 3)
    assert "s1" in cli("sessions").stdout
    assert cli("sessions", "-q").stdout == "s1\n"
    assert one["host"] not in cli("ps", "-q").stdout
    assert one["host"] in cli("ps", "-a", "-q").stdout
    assert one["host"] not in cli("ps", "-q", "--state", "running").stdout
    assert one["host"] in cli("ps", "-a", "-q", "--state", "running").stdout
    assert "Nothing is running" in cli("status").stdout
    assert "running" not in cli.json("status")["counts"]
    document = cli.json("run", "--lang", "python", "--session", "s1", "x")
    expected = {"name": "s1", "is_host": False, "host": one["host"], "note": ""}
    assert document["session"] == expected
    shown = cli("show", document["id"])
    assert "session" in shown.stdout
    assert cli("clean", "--keep", "0").returncode == 0
    assert cli("run", "--lang", "python", "--session", "s1", "x").stdout == "5\n"
    cleared = cli("sessions", "clear", "s1")
    assert "verified dead" in cleared.stdout
    assert cli("sessions").stdout == ""
    gone = cli("sessions", "clear", "s1")
    assert (gone.returncode, "there is no session s1" in gone.stderr) == (1, True)
    anew = cli("run", "--lang", "python", "--session", "s1", "x")
    assert "NameError" in anew.stderr
    assert "is new" not in anew.stderr  # it was asked for
    cli("run", "--lang", "python", "--session", "s2", "1")
    assert cli("sessions", "clear", "--all").stdout.count("cleared") == 2
    wrong = cli("run", "--lang", "bash", "--session", "s1", "1")
    assert (wrong.returncode, "no sessions in bash" in wrong.stderr) == (2, True)
    assert "python, js, ts" in wrong.stderr
