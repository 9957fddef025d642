"""Who may do what, and what keeps working when parts die: rights, secrets, zygote, engines."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import stat
import tempfile
import typing
import warnings
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    alive,
    await_death,
    begun,
    cursor,
    end,
    ended,
    joined,
    keeper_of,
    output,
    require,
    require_root,
    word,
)

import tenuto
from tenuto import Engine, ExecutionFailed, InvalidInput, NotRunning, Settings, Snapshot, State
from tenuto.engine.documents import event_documents, export_documents
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

CHAT = 'echo hello; while read line; do echo "heard $line"; done; exit 7'

# Work outlives the engine that started it


@pytest.mark.promise("X11")
async def test_another_engine_goes_on_where_a_closed_one_left(folder: Path) -> None:
    async with Engine() as first:
        snapshot = await first.run(CHAT, language="bash", wait=PATIENCE)
        assert snapshot.needs_input and snapshot.output == "hello\n"
    async with Engine() as second:
        assert [one.id for one in await second.list(running=True)] == [snapshot.id]
        assert await second.send(snapshot.id, "you") == "delivered"
        await word(second, snapshot.id, "heard you\n")
        rest = await second.logs(snapshot.id, after=cursor(snapshot))
        assert joined(rest) == b"heard you\n"
        await second.send(snapshot.id, "", eof=True)
        final = await ended(second, snapshot.id)
        assert final.exit_code == 7 and final.output == "hello\nheard you\n"
    async with Engine() as third:
        assert (await third.show(snapshot.id)).exit_code == 7
        assert await output(third, snapshot.id) == b"hello\nheard you\n"


@pytest.mark.promise("X11")
async def test_what_runs_while_no_engine_is_there_is_all_kept(folder: Path) -> None:
    async with Engine() as first:
        running = await first.start("sleep 0.3; seq 100; exit 3", language="bash")
    async with Engine() as second:
        snapshot = await ended(second, running)
        assert snapshot.exit_code == 3
        assert await output(second, running) == b"".join(b"%d\n" % n for n in range(1, 101))


@pytest.mark.promise("X11", "X8")
async def test_another_engine_kills(folder: Path) -> None:
    async with Engine() as first:
        running = await first.start(command=["sleep", "1000"])
        async with Engine() as second:
            assert (await second.kill(running)).state is State.KILLED
        assert (await first.show(running)).state is State.KILLED
        with pytest.raises(NotRunning):
            await first.kill(running)


@pytest.mark.promise("X11", "X5")
async def test_two_engines_see_the_same(engine: Engine, folder: Path) -> None:
    async with Engine(str(folder)) as other:
        running = await engine.start(CHAT, language="bash")
        await engine.wait(running, PATIENCE)

        async def heard(by: Engine) -> list[bytes]:
            return [chunk.data async for chunk in by.follow(running)]

        listeners = [asyncio.create_task(heard(one)) for one in (engine, other)]
        for n in range(10):
            await (engine, other)[n % 2].send(running, f"line {n}")
        await other.send(running, "", eof=True)
        one, two = await asyncio.gather(*listeners)
        assert one == two
        expected = b"hello\n" + b"".join(b"heard line %d\n" % n for n in range(10))
        assert b"".join(one) == expected


@pytest.mark.promise("X11")
async def test_an_engine_works_from_a_folder_inside_the_project(
    engine: Engine, folder: Path
) -> None:
    done = await engine.run(command=["true"])
    (folder / "deep" / "er").mkdir(parents=True)
    async with Engine(str(folder / "deep" / "er")) as inner:
        assert (await inner.show(done.id)).id == done.id


@pytest.mark.promise("X11")
async def test_closing_an_engine_with_waits_open_ends_nothing(folder: Path) -> None:
    async with Engine() as first:
        running = await first.start(command=["sleep", "1000"])
        waiting = asyncio.create_task(first.wait(running, PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with Engine() as second:
        assert (await second.show(running)).running
        await second.kill(running)


# Rights and secrets


@pytest.mark.promise("X16")
async def test_files_and_folders_are_the_owners_alone(engine: Engine, project: Project) -> None:
    old = os.umask(0)  # whatever the caller's habits are
    try:
        running = await engine.start("seq 100000; sleep 1000", language="bash")
        await word(engine, running, "100000\n")
        await engine.clear(running)
        await engine.run(command=["true"])
    finally:
        os.umask(old)
    base = Path(project.home)
    wrong = []
    for path in [base, *base.rglob("*")]:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # the socket of a keeper that has just left
            continue
        if stat.S_ISDIR(mode):
            fine = stat.S_IMODE(mode) == 0o700
        elif stat.S_ISSOCK(mode):
            fine = stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        else:
            fine = stat.S_IMODE(mode) == 0o600
        if not fine:
            wrong.append((str(path), oct(mode)))
    assert not wrong


def as_nobody(path: str) -> str:
    """Connect to a control socket as another user, ask for a kill; return what came of it."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        said = b"?"
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect(path)
            body = b'{"v":1,"op":"kill","signal":"KILL"}'
            sock.send(len(body).to_bytes(4, "little") + body)
            said = b"answered" if sock.recv(4096) else b"refused"
        except PermissionError:
            said = b"no way in"
        except ConnectionError:
            said = b"refused"
        finally:
            os.write(write_end, said)
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said.decode()


@pytest.mark.promise("X16")
async def test_another_user_cannot_reach_the_control_socket(
    engine: Engine, project: Project
) -> None:
    require_root()
    running = await engine.start(command=["sleep", "1000"])
    await engine.report()
    folder = Path(project.folder(running))
    with tempfile.TemporaryDirectory() as name:
        open_place = Path(name)  # socket paths hold 107 bytes only
        open_place.chmod(0o755)
        (open_place / "link").symlink_to(folder)
        assert as_nobody(f"{name}/link/control.sock") == "no way in"
        # and with every door open the keeper itself looks who comes
        try:
            os.link(folder / "control.sock", open_place / "socket")
        except OSError:
            require(False, "temporary files on one file system")
        (open_place / "socket").chmod(0o777)
        assert as_nobody(f"{name}/socket") == "refused"
    assert (await engine.show(running)).running
    assert (await engine.kill(running)).state is State.KILLED


@pytest.mark.promise("X16")
async def test_nonsense_on_the_control_socket_harms_nothing(
    engine: Engine, project: Project
) -> None:
    running = await engine.start(command=["cat"])
    await engine.wait(running, PATIENCE)
    dir_fd = os.open(project.folder(running), os.O_PATH)
    try:
        for message in (
            b"\xff\xff\xff\xff",
            b"\x05\x00\x00\x00hello",
            b"\x02\x00\x00\x00{}",
            b'\x0b\x00\x00\x00{"op":null}',
            b'\x0f\x00\x00\x00{"op":"__init"}'[:19],
            b"\x00\x00\x00\x00",
            os.urandom(3000),
        ):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(f"/proc/self/fd/{dir_fd}/control.sock")
                sock.send(message)
    finally:
        os.close(dir_fd)
    assert await engine.send(running, "still there?", eof=True) == "delivered"
    assert (await ended(engine, running)).output == "still there?\n"


@pytest.mark.promise("X16")
async def test_what_is_exported_and_shown_hides_known_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, shaped = "correct-horse-battery", "sk-" + "a1b2c3d4" * 4
    monkeypatch.setenv("MY_API_TOKEN", secret)
    async with Engine() as engine:
        code = f"import os\nprint(os.environ['MY_API_TOKEN'])\n# {shaped}\n'{shaped}'"
        snapshot = await engine.run(code, language="python")
        assert snapshot.output == secret + "\n"  # to its caller the output is what it is
        blocking = engine._engine
        for documents in (event_documents, export_documents):
            text = str(list(documents(blocking, snapshot.id)))
            assert secret not in text and shaped not in text
            assert "redacted" in text
        assert "redacted MY_API_TOKEN" in str(list(export_documents(blocking, snapshot.id)))


# The zygote


def zygote_of(project: Project, execution_id: str) -> int:
    zygote = procfs.parent(keeper_of(project, execution_id))
    assert procfs.name(zygote) == "tenuto-zygote"
    return zygote


def end_image(zygote: int) -> None:
    """End a zygote and the keepers it holds ready."""
    end(zygote, signal.SIGSTOP)  # so that it forks no more
    idle = [pid for pid in procfs.children(zygote) if procfs.name(pid) != procfs.KEEPER_NAME]
    for pid in [*idle, zygote]:
        end(pid)
        assert await_death(pid)


@pytest.mark.promise("X17", "X11")
async def test_the_death_of_the_zygote_is_survived(engine: Engine, project: Project) -> None:
    running = await engine.start(CHAT, language="bash")
    await engine.wait(running, PATIENCE)
    zygote = zygote_of(project, running)
    end(zygote)
    assert await_death(zygote)
    for n in range(5):  # more than there are keepers ahead
        assert (await engine.run(f"exit {n}", language="bash")).exit_code == n
    await engine.send(running, "after all that", eof=True)
    snapshot = await ended(engine, running)
    assert snapshot.exit_code == 7 and snapshot.output == "hello\nheard after all that\n"
    new = await engine.start(command=["sleep", "1000"])
    await begun(engine, new)
    assert zygote_of(project, new) != zygote


@pytest.mark.promise("X17")
async def test_a_dead_zygote_is_reported_and_the_next_start_renews_it(
    engine: Engine, project: Project
) -> None:
    running = await engine.start(command=["sleep", "1000"])
    await begun(engine, running)
    zygote = zygote_of(project, running)
    checks = {check.name: check for check in await engine.health()}
    assert checks["zygote"].ok and "0 restarts" in checks["zygote"].detail
    end_image(zygote)
    checks = {check.name: check for check in await engine.health()}
    assert not checks["zygote"].ok and "gone" in checks["zygote"].detail
    assert alive(keeper_of(project, running))
    answers = await asyncio.gather(*(engine.run(command=["true"]) for _ in range(8)))
    assert all(answers)
    checks = {check.name: check for check in await engine.health()}
    assert checks["zygote"].ok and "1 restarts" in checks["zygote"].detail


@pytest.mark.promise("X17")
async def test_a_dead_zygote_is_renewed_while_the_engine_watches(folder: Path, project) -> None:
    async with Engine(settings=Settings(health_every=0.1)) as engine:
        running = await engine.start(command=["sleep", "1000"])
        await begun(engine, running)
        zygote = zygote_of(project, running)
        end_image(zygote)
        async with asyncio.timeout(PATIENCE):
            while True:
                zygotes = {one.name: one for one in await engine.health()}["zygote"]
                if zygotes.ok and "1 restarts" in zygotes.detail:
                    break
        await engine.kill(running)


@pytest.mark.promise("X17")
async def test_the_zygote_ends_with_its_engine_and_keepers_do_not(
    folder: Path, project: Project
) -> None:
    async with Engine() as engine:
        running = await engine.start(command=["sleep", "1000"])
        await begun(engine, running)
        zygote, keeper = zygote_of(project, running), keeper_of(project, running)
        idle = [pid for pid in procfs.children(zygote) if procfs.name(pid) == "tenuto-idle"]
    assert all(await_death(pid) for pid in [zygote, *idle])
    assert alive(keeper)
    async with Engine() as engine:
        await engine.kill(running)


@pytest.mark.promise("X17")
async def test_health_names_everything_that_executions_need(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    checks = {check.name: check for check in await engine.health()}
    names = {"platform", "disk", "index", "containment", "input", "zygote", "keepers"}
    assert names <= set(checks)
    assert {f"language {one}" for one in ("python", "bash", "node", "deno")} <= set(checks)
    assert all(checks[name].ok for name in names), checks
    assert checks["keepers"].detail == "1 answer"
    await engine.kill(running)


@pytest.mark.promise("X17")
async def test_a_keeper_that_does_not_answer_is_reported(engine: Engine, project: Project) -> None:
    running = await engine.start(command=["sleep", "1000"])
    await begun(engine, running)
    keeper = keeper_of(project, running)
    end(keeper, signal.SIGSTOP)
    try:
        checks = [check for check in await engine.health() if check.name == "keeper"]
        assert len(checks) == 1 and not checks[0].ok
        assert running[:18] in checks[0].detail and "kill" in checks[0].hint
    finally:
        end(keeper, signal.SIGCONT)
    assert (await engine.kill(running)).state is State.KILLED


# The public surface


@pytest.mark.promise("P1")
async def test_everything_public_can_be_imported_and_nothing_else_is() -> None:
    for name in tenuto.__all__:
        assert getattr(tenuto, name) is not None
    assert set(dir(tenuto)) == set(tenuto.__all__)
    with pytest.raises(AttributeError):
        _ = tenuto.Keeper  # type: ignore[attr-defined]
    assert (Path(tenuto.__file__).parent / "py.typed").exists()


@pytest.mark.promise("P1")
async def test_every_public_verb_is_typed_and_documented() -> None:
    verbs = {
        "start", "run", "wait", "follow", "logs", "send", "kill", "kill_all", "interrupt",
        "list", "show", "clear", "clean", "report", "reports", "health", "resize",
        "code", "serve", "sessions", "clear_session", "detach", "read",
    }  # fmt: skip
    public = {name for name in vars(Engine) if not name.startswith("_")}
    assert verbs | {"home", "settings", "tools"} == public
    for name in {*verbs, "resume", "checkpoint", "checkpoints", "state", "recovered"}:
        verb = getattr(Engine, name)
        assert inspect.getdoc(verb), name
        signature = inspect.signature(verb)
        assert signature.return_annotation is not inspect.Signature.empty, name
        parameters = list(signature.parameters.values())[1:]
        assert all(one.annotation is not inspect.Parameter.empty for one in parameters), name
    assert typing.get_type_hints(Snapshot)["state"] is State


@pytest.mark.promise("P1")
async def test_an_engine_is_used_with_async_with(folder: Path) -> None:
    engine = Engine()
    with pytest.raises(InvalidInput, match="not open"):
        await engine.run(command=["true"])
    async with engine as entered:
        assert entered is engine
        assert await engine.run(command=["true"])
    with pytest.raises(InvalidInput, match="not open"):
        await engine.list()
    async with engine:  # and again
        assert len(await engine.list()) == 1


@pytest.mark.promise("P1")
async def test_a_snapshot_is_true_when_it_succeeded(engine: Engine) -> None:
    good = await engine.run("exit 0", language="bash")
    bad = await engine.run("echo no such luck >&2; exit 5", language="bash", title="unlucky")
    live = await engine.run(command=["sleep", "1000"], wait=0)
    assert good and good.done and not good.running
    assert not bad and bad.done and not bad.running
    assert not live and not live.done and live.running
    assert good.raise_for_state() is good and live.raise_for_state() is live
    with pytest.raises(ExecutionFailed, match="exit code 5") as caught:
        bad.raise_for_state()
    assert bad.id in str(caught.value) and caught.value.code == "execution_failed"
    killed = await engine.kill(live.id)
    with pytest.raises(ExecutionFailed, match="killed"):
        killed.raise_for_state()
