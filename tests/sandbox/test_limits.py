"""Each limit in a sandbox: what goes over it ends as failed, reason limit, with its output kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import NOBODY, Box, need

from tenuto.keeper import limits

pytestmark = pytest.mark.promise("S1")

BOMB = "print('begun', flush=True)\nheld = []\nwhile True: held.append(bytearray(1 << 20))"
CHILDREN = """
import os, time
print("begun", flush=True)
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(60 << 20)
        for at in range(0, len(held), 4096): held[at] = 1
        time.sleep(60)
time.sleep(60)
"""
FORKS = """
import os, time
print("begun", flush=True)
for _ in range(200):
    if os.fork() == 0:
        time.sleep(60)
"""


@pytest.fixture(
    params=[
        pytest.param(
            (rung, user, without), id="-".join([rung, who, *(["no-cgroup"] * bool(without))])
        )
        for rung in ("bwrap", "landlock")
        for user, who in ((None, "own"), (NOBODY, "nobody"))
        for without in ("", "cgroup")
        if user is None or (os.geteuid() == 0 and not without)  # nobody has no control groups
    ]
)
def limited(request: pytest.FixtureRequest) -> Iterator[Box]:
    rung, user, without = request.param
    need(rung, user)
    box = Box(rung, user, without)
    yield box
    box.close()


def grouped(box: Box, name: str) -> bool:
    """Tell whether a control group holds this limit for the box."""
    return (
        box.user is None
        and "cgroup" not in box.env["TENUTO_SANDBOX_WITHOUT"]
        and name in limits.find()
    )


def assert_limit(end: dict, resource: str, bound: str) -> None:
    assert (end["state"], end["reason"]) == ("failed", "limit"), end
    assert end["detail"] == f"{resource} limit {bound}"
    assert "begun" in end["output"]
    assert end["left_behind"] == []


def test_memory(limited: Box) -> None:
    end = limited.python(BOMB, "--mem", "128M", level="require")
    assert_limit(end, "memory", f"{128 << 20} bytes")
    told = any("memory" in one for one in end["confinement"]["missing"])
    assert told != grouped(limited, "memory")


def test_memory_of_all_processes_together(limited: Box) -> None:
    end = limited.python(CHILDREN, "--mem", "200M", level="require")
    assert_limit(end, "memory", f"{200 << 20} bytes")


def test_memory_in_tmp_counts(limited: Box) -> None:
    if limited.rung == "landlock":
        pytest.skip("its /tmp is on disk")
    code = "print('begun')\nwith open('/tmp/f', 'wb') as f:\n  while 1: f.write(bytes(1 << 20))"
    end = limited.python(code, "--mem", "128M")
    assert end["state"] == "failed"
    assert end["reason"] == "limit" or "No space left" in end["output"]


def test_processes(limited: Box) -> None:
    end = limited.python(FORKS, "--pids", "20")
    counted = limited.user is not None or os.getuid() != 0  # the system bounds anybody but root
    if grouped(limited, "pids") or (limited.rung == "bwrap" and counted):
        assert_limit(end, "pids", "20")
    else:
        missing = " ".join(end["confinement"]["missing"])
        assert "pids" in missing
        refused = limited.json(
            "run", "--sandbox", "require", "--pids", "20", "--lang", "python", "--", FORKS
        )
        assert refused["error"]["code"] == "sandbox_unavailable"


def test_fork_bomb(limited: Box) -> None:
    if not grouped(limited, "pids"):
        pytest.skip("no control group for pids")
    code = "echo begun; f() { f | f & }; f; sleep 60"
    end = limited.run("--pids", "30", "--lang", "bash", "--", code, level="require")
    assert_limit(end, "pids", "30")


def test_processor_time(limited: Box) -> None:
    end = limited.python("print('begun', flush=True)\nwhile True: pass", "--cpu", "1s")
    assert_limit(end, "cpu", "1 s")


@pytest.mark.full
def test_processor_time_of_all_together(limited: Box) -> None:
    code = "echo begun; for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"
    end = limited.run("--cpu", "2s", "--lang", "bash", "--", code)
    assert_limit(end, "cpu", "2 s")
    assert end["duration_s"] < 30


def test_file_size(limited: Box) -> None:
    code = "print('begun', flush=True)\nopen('big', 'wb').write(bytes(2 << 20))"
    end = limited.python(code, "--fsize", "1M")
    assert_limit(end, "file_size", f"{1 << 20} bytes")
    assert (limited.work / "big").stat().st_size <= 1 << 20


def test_a_file_size_below_that_of_the_files_of_etc(limited: Box) -> None:
    code = "print('begun', flush=True)\nwith open('big', 'wb') as f: f.write(bytes(2 << 10))"
    end = limited.python(code, "--fsize", "100")
    assert_limit(end, "file_size", "100 bytes")


@pytest.mark.promise("X12")
def test_the_use_of_all_its_processes_is_told(limited: Box) -> None:
    code = (
        "import os, time\n"
        "while time.process_time() < 0.3: pass\n"
        "if os.fork() == 0:\n"
        "    held = b'x' * (64 << 20)\n"
        "    while time.process_time() < 0.3: pass\n"
        "    os._exit(0)\n"
        "os.wait()"
    )
    usage = limited.python(code)["usage"]
    assert 0.6 <= usage["user_s"] + usage["system_s"] < 5
    most = usage.get("max_rss")
    assert (limited.rung == "bwrap" and most is None) or 64 << 20 <= most < 200 << 20


def test_output(limited: Box) -> None:
    code = "print('begun', flush=True)\nwhile True: print('x' * 1000)"
    end = limited.python(code, "--max-output", "64k", "--output-policy", "fail")
    assert_limit(end, "output", str(64 << 10))


def test_wall_time(limited: Box) -> None:
    end = limited.python("print('begun', flush=True)\nwhile True: pass", "--deadline", "1s")
    assert (end["state"], end["reason"]) == ("failed", "deadline")
    assert "begun" in end["output"]


def test_node_under_a_memory_limit(limited: Box) -> None:
    if shutil.which("node", path=limited.env["PATH"]) is None:
        pytest.skip("node is not on this user's PATH")
    assert limited.run("--mem", "256M", "--lang", "node", "--", "1 + 1")["value"] == 2
    code = "console.log('begun'); const a = []; for (;;) a.push(Buffer.alloc(1 << 20, 1))"
    end = limited.run("--mem", "256M", "--lang", "node", "--", code)
    assert_limit(end, "memory", f"{256 << 20} bytes")


@pytest.mark.promise("S2")
def test_the_next_one_is_right_and_nothing_is_left(limited: Box) -> None:
    limited.python(BOMB, "--mem", "64M", "--pids", "50")
    assert limited.python("6 * 7", "--mem", "128M", "--pids", "50")["value"] == 42
    until = time.monotonic() + 20
    while time.monotonic() < until:
        left = [
            entry
            for base in {place[2:] for place in limits.find().values()}
            for entry in Path(base).iterdir()
            if entry.is_dir() and Path(f"/proc/{entry.name.split('-')[0]}").exists()
        ]
        if not left:
            return
    # other executions on this machine may have groups of their own
    assert all((entry / "cgroup.procs").read_text() for entry in left)
