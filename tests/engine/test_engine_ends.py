"""How programs end, and what is told about it: crashes, limits, languages."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from engine_help import PATIENCE, ended, events_of, folded, output, require_program

from tenuto import Engine, InterpreterMissing, InvalidInput, Limits, Settings, State
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

# Crashes


@pytest.mark.promise("X12")
@pytest.mark.parametrize("code", [1, 2, 42, 255])
async def test_an_exit_code_is_told(engine: Engine, code: int) -> None:
    snapshot = await engine.run(f"echo words; exit {code}", language="bash")
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "exit")
    assert snapshot.exit_code == code and snapshot.signal is None
    assert snapshot.output == "words\n" and str(code) in snapshot.detail


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
    ],
)
async def test_the_signal_that_ended_a_program_is_told(
    engine: Engine, code: str, name: str
) -> None:
    snapshot = await engine.run("print('before', flush=True)\n" + code, language="python")
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "signal")
    assert snapshot.signal == name and snapshot.exit_code is None
    assert snapshot.stdout == b"before\n"
    assert snapshot.hint or name == "SIGTERM"


HINTS = [
    ("python", "import no_such_module_at_all", "module is missing"),
    ("python", "def broken(:", "does not parse"),
    ("python", "open('/no/such/file')", "file is missing"),
    ("python", "raise PermissionError('Permission denied')", "permission denied"),
    ("python", "{}['key']", "raised an exception"),
    ("python", "raise MemoryError", "out of memory"),
    ("bash", "no-such-command-at-all", "command is missing"),
    ("bash", "if then", "does not parse"),
    ("node", "require('no-such-module')", "module is missing"),
    ("node", "let x = ;", "does not parse"),
    ("js", "require('fs')", "code-mode has no require: "),
    ("js", "const fetched = fetch;", "run it in node (--lang node)"),
    ("js", "fetched", "raised an exception"),
    (
        "node",
        "setTimeout(() => { null.x }, 10); await new Promise(() => {})",
        "raised an exception",
    ),
]


@pytest.mark.promise("X12")
@pytest.mark.parametrize(("language", "code", "hint"), HINTS)
async def test_a_failure_comes_with_a_suggestion(
    engine: Engine, language: str, code: str, hint: str
) -> None:
    if language == "node":
        require_program("node")
    snapshot = await engine.run(code, language=language)
    assert snapshot.state is State.FAILED and hint in snapshot.hint, snapshot.output
    assert hint in (await engine.show(snapshot.id)).hint


@pytest.mark.promise("X12")
@pytest.mark.parametrize("language", ["python", "node"])
async def test_a_port_in_use_is_told(engine: Engine, language: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = f"import socket; socket.create_server(('127.0.0.1', {port}))"
        if language == "node":
            require_program("node")
            code = f"require('net').createServer().listen({port}, '127.0.0.1')"
        snapshot = await engine.run(code, language=language)
    assert snapshot.state is State.FAILED and "port is in use" in snapshot.hint


@pytest.mark.promise("X12")
async def test_an_uncaught_exception_is_recorded_with_its_line(
    engine: Engine, project: Project
) -> None:
    code = "x = 1\ny = 0\nprint('so far', flush=True)\nx / y"
    snapshot = await engine.run(code, language="python")
    assert snapshot.exit_code == 1 and snapshot.stdout == b"so far\n"
    assert b"ZeroDivisionError" in snapshot.stderr
    (raised,) = events_of(project, snapshot.id, "raised")
    assert (raised["name"], raised["line"]) == ("ZeroDivisionError", 4)


@pytest.mark.promise("X12")
async def test_a_program_that_cannot_be_executed_is_told(engine: Engine, folder: Path) -> None:
    (folder / "garbage").write_bytes(b"\x00\x01\x02 nothing that runs")
    (folder / "garbage").chmod(0o755)
    snapshot = await engine.run(command=["./garbage"])
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == (State.FAILED, "exec", 126)
    assert "Exec format error" in snapshot.detail and "could not be started" in snapshot.hint
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "script").chmod(0o755)
    snapshot = await engine.run(command=["./script"])
    assert (snapshot.reason, snapshot.exit_code) == ("exec", 127)


@pytest.mark.promise("X12")
async def test_a_crash_answers_every_waiter_at_once(engine: Engine) -> None:
    import asyncio

    running = await engine.start(
        "import os; input(); print('oops', flush=True); os._exit(11)", language="python"
    )
    await engine.wait(running, PATIENCE)
    waits = [asyncio.create_task(ended(engine, running)) for _ in range(5)]
    await asyncio.sleep(0)
    await engine.send(running, "go")
    answers = await asyncio.gather(*waits)
    assert {one.exit_code for one in answers} == {11}
    assert all(one.output == "oops\n" for one in answers)


# Limits


@pytest.mark.promise("X12")
async def test_a_memory_limit_names_itself(engine: Engine) -> None:
    code = "print('start', flush=True)\nblock = bytearray(400 * 1024 * 1024)\nprint('never')"
    limits = Limits(memory=200 * 1024 * 1024)
    snapshot = await engine.run(code, language="python", limits=limits)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")
    assert snapshot.detail == "memory limit 209715200 bytes"
    assert snapshot.stdout == b"start\n" and "raise that limit" in snapshot.hint
    assert (await engine.run("b = bytearray(400 * 1024 * 1024)", language="python")).done


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "echo start; while true; do :; done"),
        ("python", "print('start', flush=True)\nwhile True: pass"),
        ("bash", "echo start; python3 -c 'while True: pass'; exit $?"),
    ],
    ids=["bash", "python", "in a child"],
)
async def test_a_cpu_limit_names_itself(engine: Engine, language: str, code: str) -> None:
    snapshot = await engine.run(code, language=language, limits=Limits(cpu=1), wait=PATIENCE)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit"), snapshot.detail
    assert snapshot.detail == "cpu limit 1 s"
    assert snapshot.stdout == b"start\n"


@pytest.mark.promise("X12")
async def test_a_sleeping_program_uses_no_cpu(engine: Engine) -> None:
    snapshot = await engine.run(command=["sleep", "1.5"], limits=Limits(cpu=1))
    assert snapshot.state is State.SUCCEEDED


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "head -c 3000000 /dev/zero > big; exit $?"),
        ("python", "open('big', 'wb').write(b'0' * 3_000_000)"),
        ("node", "require('fs').writeFileSync('big', Buffer.alloc(3_000_000))"),
    ],
)
async def test_a_file_size_limit_names_itself(
    engine: Engine, folder: Path, language: str, code: str
) -> None:
    if language == "node":
        require_program("node")
    limits = Limits(file_size=1_000_000)
    snapshot = await engine.run(code, language=language, limits=limits)
    assert (folder / "big").stat().st_size <= 1_000_000
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit"), snapshot.detail
    assert snapshot.detail == "file_size limit 1000000 bytes"


@pytest.mark.promise("X12")
async def test_output_does_not_count_as_file_size(engine: Engine) -> None:
    snapshot = await engine.run(
        "head -c 3000000 /dev/zero", language="bash", limits=Limits(file_size=1_000_000)
    )
    assert snapshot.state is State.SUCCEEDED and snapshot.output_bytes == 3_000_000


@pytest.mark.promise("X12")
async def test_an_open_files_limit_is_enforced(engine: Engine) -> None:
    code = """
kept = []
try:
    while True: kept.append(open('/dev/null'))
except OSError as error:
    print(error.errno, flush=True)
    kept.clear()
    raise
"""
    snapshot = await engine.run(code, language="python", limits=Limits(open_files=32))
    assert snapshot.stdout == b"24\n"
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit"), snapshot.detail
    assert snapshot.detail == "open_files limit 32"


@pytest.mark.promise("X12")
@pytest.mark.parametrize("name", ["memory", "cpu", "file_size", "open_files", "output"])
async def test_a_limit_must_be_above_zero(engine: Engine, name: str) -> None:
    for value in (0, -1):
        with pytest.raises(InvalidInput, match=name):
            await engine.run(command=["true"], limits=Limits(**{name: value}))  # type: ignore[arg-type]
    assert await engine.list() == []


# Languages

VALUES = [
    ("python", "2**53 - 1", 2**53 - 1),
    ("python", "x = 5\nx * 2", 10),
    ("python", "'käse ✓ 🎉'", "käse ✓ 🎉"),
    ("python", "[1, [2.5, None, True], {'k': 'v'}]", [1, [2.5, None, True], {"k": "v"}]),
    ("node", "2**53 - 1", 2**53 - 1),
    ("node", "const x = 5; x * 2", 10),
    ("node", "await Promise.resolve({a: [1, null, 'ü']})", {"a": [1, None, "ü"]}),
]


@pytest.mark.promise("X13")
@pytest.mark.parametrize(("language", "code", "value"), VALUES)
async def test_the_last_expressions_value_is_returned(
    engine: Engine, language: str, code: str, value: object
) -> None:
    if language == "node":
        require_program("node")
    snapshot = await engine.run(code, language=language)
    assert snapshot.has_value and snapshot.value == value, snapshot.output
    assert (await engine.show(snapshot.id)).value == value


@pytest.mark.promise("X13")
async def test_no_value_where_there_is_none(engine: Engine) -> None:
    for code in ("x = 5", "print('hi')", "None"):
        snapshot = await engine.run(code, language="python")
        assert not snapshot.has_value and snapshot.value is None
    assert not (await engine.run("echo 5", language="bash")).has_value


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "open('runs', 'a').write('run\\n')\nraise SystemExit(3)"),
        ("python", "open('runs', 'a').write('run\\n')"),
        ("bash", "echo run >> runs; false"),
        ("node", "require('fs').appendFileSync('runs', 'run\\n'); throw new Error('no')"),
        ("deno", "Deno.writeTextFileSync('runs', 'run\\n', {append: true}); 5"),
    ],
)
async def test_code_runs_exactly_once(
    engine: Engine, folder: Path, language: str, code: str
) -> None:
    if language in ("node", "deno"):
        require_program(language)
    await engine.run(code, language=language, wait=PATIENCE)
    assert (folder / "runs").read_text() == "run\n"


@pytest.mark.promise("X13")
async def test_deno_takes_typescript(engine: Engine) -> None:
    require_program("deno")
    code = "const x: number = 20; console.log(x + 1)"
    snapshot = await engine.run(code, language="deno", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED and snapshot.output == "21\n"


@pytest.mark.promise("X13")
async def test_the_working_directory_is_the_callers_or_the_one_asked_for(
    engine: Engine, folder: Path, tmp_path: Path
) -> None:
    inside = folder / "inside with a space"
    inside.mkdir()
    assert (await engine.run("pwd", language="bash")).output.strip() == str(folder)
    for cwd in (str(inside), "inside with a space"):
        snapshot = await engine.run(command=["pwd"], cwd=cwd)
        assert snapshot.output.strip() == str(inside)
    code = "import os; os.getcwd()"
    assert (await engine.run(code, language="python", cwd=str(tmp_path))).value == str(tmp_path)


@pytest.mark.promise("X13")
async def test_a_missing_working_directory_is_an_error(engine: Engine, folder: Path) -> None:
    (folder / "file").touch()
    for cwd in ("/no/such/folder", str(folder / "file"), "a\0b"):
        with pytest.raises(InvalidInput):
            await engine.run(command=["true"], cwd=cwd)
    assert await engine.list() == []


@pytest.mark.promise("X13")
async def test_a_working_directory_that_vanishes_before_the_start_is_told(
    engine: Engine, tmp_path: Path
) -> None:
    """Checked when it is asked for, entered later: in between it may go."""
    from tenuto.engine.work import Options

    place = tmp_path / "soon-gone"
    place.mkdir()
    work = engine._engine.command(["true"], Options(cwd=str(place)))
    place.rmdir()
    execution_id, sock = engine._engine.start(work)
    sock.close()
    snapshot = await ended(engine, execution_id)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "exec")
    assert "No such file" in snapshot.detail


@pytest.mark.promise("X13")
async def test_the_environment_does_not_leak_between_executions(engine: Engine) -> None:
    code = "import os; os.environ['LEAK'] = 'x'; sorted(k for k in os.environ if 'LEAK' in k)"
    first = await engine.run(code, language="python", env={"LEAK_ONE": "1"})
    assert first.value == ["LEAK", "LEAK_ONE"]
    second = await engine.run(code, language="python", env={"LEAK_TWO": "2"})
    assert second.value == ["LEAK", "LEAK_TWO"]
    assert "LEAK" not in os.environ and "LEAK_ONE" not in os.environ


@pytest.mark.promise("X13")
async def test_the_environment_is_the_callers_with_what_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_CALLER", "there")
    async with Engine() as engine:
        code = "import os; [os.environ.get('FROM_CALLER'), os.environ.get('MINE')]"
        assert (await engine.run(code, language="python")).value == ["there", None]
        snapshot = await engine.run(
            code, language="python", env={"FROM_CALLER": "other", "MINE": "ü=1"}
        )
        assert snapshot.value == ["other", "ü=1"]


@pytest.mark.promise("X13")
async def test_a_missing_interpreter_is_told_with_advice(folder: Path) -> None:
    settings = Settings(programs={"python": "/no/such/python"})
    async with Engine(settings=settings) as engine:
        with pytest.raises(InterpreterMissing, match="/no/such/python"):
            await engine.run("1", language="python")
        with pytest.raises(InvalidInput, match="no language 'cobol'") as caught:
            await engine.run("1", language="cobol")
        assert "python" in caught.value.hint
        with pytest.raises(InvalidInput, match="not on PATH"):
            await engine.run(command=["no-such-program-at-all"])
        assert await engine.list() == []


@pytest.mark.promise("X13")
async def test_the_settings_name_the_interpreter(folder: Path) -> None:
    (folder / "python").symlink_to(sys.executable)
    settings = Settings(programs={"python": str(folder / "python")})
    async with Engine(settings=settings) as engine:
        snapshot = await engine.run("import sys; sys.executable", language="python")
        assert snapshot.value == str(folder / "python")


@pytest.mark.promise("X13")
async def test_values_that_no_program_can_be_given_are_refused(engine: Engine) -> None:
    bad = [
        {"command": ["echo", "a\0b"]},
        {"command": []},
        {"command": [""]},
        {"code": "print('a\0b')", "language": "python"},
        {"command": ["true"], "env": {"A": "x\0y"}},
        {"command": ["true"], "env": {"A=B": "x"}},
        {"command": ["true"], "env": {"": "x"}},
        {"command": ["true"], "title": "a\0b"},
        {"command": ["echo", "\udcff"]},
        {"code": "1", "command": ["true"]},
        {"code": "1"},
        {},
    ]
    for arguments in bad:
        with pytest.raises(InvalidInput):
            await engine.run(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await engine.start(command=["true"], colour="red")
    assert await engine.list() == []


@pytest.mark.promise("X13")
async def test_arguments_arrive_exactly(engine: Engine) -> None:
    arguments = ["", " ", "a b", "'\"$(ls)`", "*", "-n", "ü✓", "\n\t", "x" * 100_000]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    snapshot = await engine.run(command=["python3", "-c", code, *arguments])
    import json

    assert json.loads(snapshot.stdout) == arguments


@pytest.mark.promise("X13", "X16")
async def test_names_of_variables_are_recorded_but_never_values(
    engine: Engine, project: Project, tmp_path: Path
) -> None:
    secret = "s3cr3t-0f-th3-3nv1r0nm3nt"
    running = await engine.start(
        "import os; print(len(os.environ['PASS_WORD'])); input()",
        language="python",
        env={"PASS_WORD": secret, "OTHER": "1"},
    )
    await engine.wait(running, PATIENCE)
    spec = folded(project, running).spec
    assert spec is not None and spec.env_names == ("OTHER", "PASS_WORD")
    assert await output(engine, running) == f"{len(secret)}\n".encode()
    await engine.send(running, "x")
    await ended(engine, running)
    await engine.list()
    found = [
        path
        for path in Path(os.environ["XDG_STATE_HOME"]).rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert found == []
