"""What a VM can still do once hostile code has taken over the whole process: nothing that counts."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from code_help import FULL, status_of, value_of
from engine_help import events_of, keeper_pid

from tenuto import Engine, Snapshot
from tenuto.codemode import job
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio
HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def taken_over() -> Iterator[pytest.MonkeyPatch]:
    folders = [*job.locations(), HERE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "MODULE", "compromised")
        patch.setattr(job, "locations", lambda: folders)
        yield patch


@pytest_asyncio.fixture
async def victim(folder: Path) -> AsyncIterator[Engine]:
    async with Engine(str(folder)) as engine:
        yield engine


async def attack(engine: Engine, code: str) -> Snapshot:
    snapshot = await engine.run(code, language="js", wait=60)
    assert snapshot.done, snapshot.output
    return snapshot


def assert_refused(snapshot: Snapshot) -> None:
    assert "DONE" not in snapshot.output, snapshot.output
    ended = snapshot.signal == "SIGSYS" or "REFUSED" in snapshot.output
    assert ended, (snapshot.reason, snapshot.detail, snapshot.output)


FILES = {
    "read a file": "open('/etc/passwd').read()",
    "list a folder": "os.listdir('/')",
    "write a file": "open('/tmp/tenuto-vm-was-here', 'w').write('x')",
    "make a folder": "os.mkdir('/tmp/tenuto-vm-was-here')",
    "follow /proc": "open('/proc/self/root/etc/passwd').read()",
    "read the parent's memory map": "open(f'/proc/{os.getppid()}/maps').read()",
    "look at the parent's descriptors": "os.listdir(f'/proc/{os.getppid()}/fd')",
    "make room for a descriptor and open": "os.close(0); os.open('/etc/passwd', os.O_RDONLY)",
    "make a symbolic link": "os.symlink('/etc/passwd', '/tmp/tenuto-vm-was-here')",
    "stat": "os.stat('/etc/passwd')",
    "change the root": "os.chroot('/tmp')",
    "memfd": "os.memfd_create('x')",
    "a pipe": "os.close(1); os.close(2); os.pipe()",
}
SOCKETS = {
    f"a socket of {family}": f"os.close(0); socket.socket(socket.{family}, socket.{kind})"
    for family, kind in [
        ("AF_INET", "SOCK_STREAM"),
        ("AF_INET", "SOCK_DGRAM"),
        ("AF_INET6", "SOCK_STREAM"),
        ("AF_UNIX", "SOCK_STREAM"),
        ("AF_NETLINK", "SOCK_RAW"),
        ("AF_PACKET", "SOCK_RAW"),
        ("AF_ALG", "SOCK_SEQPACKET"),
        ("AF_VSOCK", "SOCK_STREAM"),
    ]
} | {"a pair of sockets": "os.close(0); os.close(1); socket.socketpair()"}
PROCESSES = {
    "fork": "os.fork()",
    "raw fork": "syscall(57)",
    "vfork": "syscall(58)",
    "clone": "syscall(56, 17)",
    "clone into new namespaces": "syscall(56, 0x10000000 | 17)",
    "exec": "os.execv('/bin/true', ['true'])",
    "kill the parent": "os.kill(os.getppid(), 9)",
    "signal the parent's thread": "syscall(234, os.getppid(), os.getppid(), 15)",
    "kill everybody": "os.kill(-1, 9)",
    "ptrace the parent": "syscall(101, 16, os.getppid())",
    "read the parent's memory": "syscall(310, os.getppid())",
    "write the parent's memory": "syscall(311, os.getppid())",
    "a descriptor of the parent": "syscall(434, os.getppid())",
    "bound the parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "leave the group": "os.setsid()",
    "be root again": "os.setresuid(0, 0, 0)",
    "groups": "os.setgroups([0])",
}
KERNEL = {
    "mount": "syscall(165)",
    "user namespace": "syscall(272, 0x10000000)",
    "enter a namespace": "syscall(308, 0)",
    "io_uring": "syscall(425, 8)",
    "bpf": "syscall(321)",
    "perf": "syscall(298)",
    "userfaultfd": "syscall(323)",
    "keyring": "syscall(250)",
    "shared memory": "syscall(29, 0, 4096, 0o1600)",
    "message queue": "syscall(68, 0, 0o1600)",
    "kernel module": "syscall(175)",
    "reboot": "syscall(169)",
    "executable memory": "syscall(9, 0, 4096, 7, 0x22, -1)",
    "make memory executable": "syscall(10, 0, 4096, 4)",
    "shared mapping": "syscall(9, 0, 4096, 3, 0x21, -1)",
    "personality": "syscall(135, 0x40000)",
    "another architecture's numbers": "syscall(0x40000000 + 39)",
    "loosen seccomp": "syscall(317, 1)",
    "dumpable": "syscall(157, 4, 1)",
    "ioctl on the channel": "fcntl.ioctl(3, 0x5412, b'x')",
    "raise its own limit": "resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))",
    "have more memory than its limit": "x = bytearray(400 << 20)",
    "have it in small pieces": "x = [bytearray(1 << 20) for _ in range(400)]",
}
ATTACKS = {**FILES, **SOCKETS, **PROCESSES, **KERNEL}


@pytest.mark.promise("C2", "X16")
async def test_every_attack_is_refused(victim: Engine, project: Project) -> None:
    for name, code in ATTACKS.items():
        snapshot = await attack(victim, code)
        assert "DONE" not in snapshot.output, (name, snapshot.output)
        ended = snapshot.signal == "SIGSYS" or "REFUSED" in snapshot.output
        assert ended, (name, snapshot.reason, snapshot.detail, snapshot.output)
        (confined,) = events_of(project, snapshot.id, "confined")
        assert confined["level"] == FULL, confined
    assert not os.path.lexists("/tmp/tenuto-vm-was-here")


@pytest.mark.promise("X16")
async def test_the_state_folder_and_sockets_are_out_of_reach(
    victim: Engine, project: Project
) -> None:
    snapshot = await victim.run("time.sleep(60)", language="js", wait=0)
    other = project.folder(snapshot.id)
    assert os.path.exists(f"{other}/control.sock")
    for code in (
        f"os.listdir({project.home!r})",
        f"open({other + '/tape'!r}, 'rb').read()",
        f"open({other + '/tape'!r}, 'ab').write(b'forged')",
        f"open({project.index!r}, 'rb').read()",
        f"os.close(0); s = socket.socket(socket.AF_UNIX); s.connect({other + '/control.sock'!r})",
    ):
        assert_refused(await attack(victim, code))
    await victim.kill(snapshot.id)


@pytest.mark.promise("C2")
async def test_the_process_has_nothing_it_does_not_need(victim: Engine, project: Project) -> None:
    snapshot = await victim.run("machine._readers = 1\nmachine._wait()", language="js")
    assert snapshot.running
    pid = events_of(project, snapshot.id, "started")[0]["pid"]
    status = status_of(pid)
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert sorted(os.listdir(f"/proc/{pid}/fd"), key=int) == ["0", "1", "2", "3"]
    if os.geteuid() == 0:
        assert status["Uid"].split() == ["65534"] * 4
        assert status["Gid"].split() == ["65534"] * 4
        assert status["Groups"].split() == []
    killed = await victim.kill(snapshot.id)
    assert killed.state == "killed"


@pytest.mark.promise("C2")
@pytest.mark.parametrize(
    "code",
    [
        "os.write(3, b'\\x00\\xff' * 100000)",
        "os.write(3, b'{' * 1000000 + b'\\n')",
        "os.write(3, b'[' * 300000 + b']' * 300000 + b'\\n')",
        "for _ in range(30): os.write(3, b'x' * (1 << 20))",
        'os.write(3, b\'{"type":"ended","state":"succeeded"}\\n\')',
        'os.write(3, b\'{"type":"started","pid":1}\\n{"type":5}\\n[]\\nnull\\n"x"\\n\')',
        'os.write(3, b\'{"type":"value","json":1e999}\\n\')',
        'os.write(3, b\'{"type":"log","level":[],"text":{}}\\n\')',
        'os.write(3, b\'{"type":"log","level":"root","text":"x"}\\n\')',
        'os.write(3, b\'{"type":"log"}\\n{"type":"log","level":"log"}\\n{"type":"limit"}\\n\')',
        'os.write(3, b\'{"type":"confined","level":"forged"}\\n\')',
        'os.write(3, b\'{"type":"cell_done","n":1,"code":0}\\n\')',
        'os.write(3, b\'{"type":"answer","n":1}\\n\')',
        'os.write(3, b\'{"type":"call","n":7,"name":"nothing","args":[]}\\n\')',
        'for _ in range(20000): os.write(3, b\'{"type":"value","json":[1,2,3]}\\n\')',
        'for _ in range(20000): os.write(3, b\'{"type":"raised","name":"E"}\\n\')',
        'for _ in range(20000): os.write(3, b\'{"type":"reading"}\\n{"type":"read"}\\n\')',
        "os.close(3)",
        'os.write(3, b\'{"type":"log","level":"log","text":"half\')',
    ],
)
async def test_forged_messages_harm_only_the_forger(
    victim: Engine, project: Project, code: str, taken_over: pytest.MonkeyPatch
) -> None:
    snapshot = await attack(victim, code)
    assert snapshot.state in ("succeeded", "failed")
    assert len(events_of(project, snapshot.id, "value_returned")) <= 1
    assert len(events_of(project, snapshot.id, "raised")) <= 1
    assert [one["level"] for one in events_of(project, snapshot.id, "confined")] == [FULL]
    assert len(events_of(project, snapshot.id, "ended")) == 1
    keeper = keeper_pid(project, snapshot.id)
    if os.path.exists(f"/proc/{keeper}/status"):  # it waits for another job
        assert int(status_of(keeper)["VmHWM"].split()[0]) < 96 * 1024
    taken_over.undo()
    async with Engine(str(Path.cwd())) as engine:
        assert await value_of(engine, "6 * 7") == 42


@pytest.mark.promise("C2")
@pytest.mark.parametrize("item", ["[],", "{},", '{"a":1},', '"ab",', "0.5,"])
@pytest.mark.parametrize("kind", ["value", "nonsense"])
async def test_a_message_that_would_grow_as_it_is_read_is_not_read(
    victim: Engine, project: Project, kind: str, item: str
) -> None:
    name = "json" if kind == "value" else "a"
    code = f"""
line = '{{"type":"{kind}","{name}":[' + {item!r} * {15_000_000 // len(item)} + '1]}}'
machine.say(line)
"""
    snapshot = await attack(victim, code)
    if kind == "value":
        assert "value too large" in str(snapshot.value), str(snapshot.value)[:100]
    else:
        assert snapshot.reason == "limit" and "message limit" in snapshot.detail
    keeper = keeper_pid(project, snapshot.id)
    if os.path.exists(f"/proc/{keeper}/status"):
        assert int(status_of(keeper)["VmHWM"].split()[0]) < 96 * 1024
    text = await attack(
        victim, 'machine.say(\'{"type":"value","json":"\' + \'[{,\' * 4000000 + \'"}\')'
    )
    assert text.value == "[{," * 4_000_000  # only a text: all of it comes


@pytest.mark.promise("C2", "S2")
@pytest.mark.parametrize(
    ("off", "level"),
    [
        ("seccomp", "landlock+rlimits"),
        ("landlock", "seccomp+rlimits"),
        ("landlock,seccomp", "rlimits"),
        ("user", FULL),
        ("landlock,seccomp,user", "rlimits"),
    ],
)
async def test_a_step_down_the_ladder_is_told_and_still_holds(
    folder: Path, project: Project, off: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_TEST_WITHOUT", off)
    async with Engine(str(folder)) as engine:
        for code in ("open('/etc/passwd').read()", "os.fork()", SOCKETS["a socket of AF_INET"][13:],
                     f"open({str(folder / 'x')!r}, 'w').write('x')"):  # fmt: skip
            if "fork" in code and off == "landlock,seccomp,user" and os.geteuid() == 0:
                continue  # the system counts no processes of root: that is told as missing
            snapshot = await attack(engine, code)
            assert_refused(snapshot)
            assert snapshot.confinement is not None
            assert snapshot.confinement.level == level
            told = " ".join(snapshot.confinement.missing)
            for one in off.split(","):
                assert (one in told) or os.geteuid() != 0
        refused = await engine.run("say('it ran')", language="js", wait=60, sandbox="require")
        assert refused.state == "failed" and "required" in refused.detail, refused
        assert refused.output == "" and not events_of(project, refused.id, "value_returned")


@pytest.mark.promise("S2")
async def test_require_runs_where_everything_is_there(victim: Engine) -> None:
    snapshot = await victim.run("say('it ran')", language="js", wait=60, sandbox="require")
    assert snapshot and snapshot.output == "it ran\nDONE\n", snapshot


@pytest.mark.promise("C2")
async def test_a_vm_dies_with_its_keeper(victim: Engine, project: Project) -> None:
    snapshot = await victim.run("while True: pass", language="js", wait=0.3)
    pid = events_of(project, snapshot.id, "started")[0]["pid"]
    watch = os.pidfd_open(pid)
    os.kill(keeper_pid(project, snapshot.id), 9)
    import select

    poller = select.poll()
    poller.register(watch, select.POLLIN)
    assert poller.poll(20_000), "the VM outlived its keeper"
    os.close(watch)
    assert (await victim.show(snapshot.id)).state == "lost"


async def test_the_attacks_would_work_without_the_vm() -> None:
    """The list above is worth something only if its calls are possible at all."""
    assert Path("/etc/passwd").read_text()
    assert os.listdir("/")
    with socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX):
        pass
