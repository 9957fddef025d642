"""Run the tests in four lanes at once: most of their time goes into waiting for processes.

Each lane is a pytest of its own over some of the folders, and every folder is in one of them. With
arguments of one's own (`make test ARGS="-k tape"`) there is one pytest, as if this were not here.

Four lanes on two processors starve each other at times, and some tests watch a clock or a race. So
a few that failed are run once more when the machine is quiet: what fails again has failed, and what
does not is named at the end as unsteady, to be looked at.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
# Lanes that take about as long as each other; what is not named here is the fourth.
LANES = (
    ("cli", "codemode", "codemode_source", "core", "deno", "engine", "engine_unit", "sessions",
     "stores", "tools"),
    ("faults", "mcp", "metering", "sandbox"),
    ("history", "hostcalls", "models", "state", "tasks"),
)  # fmt: skip
A_FEW = 8
SOME_FAILED = 1  # as pytest says it
PYTEST = (str(Path(sys.executable).with_name("pytest")),)


def main(arguments: list[str]) -> int:
    """Return 0 if all is well, else what pytest returned."""
    if arguments:
        return subprocess.call([*PYTEST, *arguments], cwd=ROOT)
    names = sorted(path.name for path in (ROOT / "tests").iterdir() if _holds_tests(path))
    rest = [name for name in names if not any(name in lane for lane in LANES)]
    lanes = [[f"tests/{name}" for name in names if name in lane] for lane in (*LANES, rest)]
    return run(lanes, ROOT)


def run(lanes: list[list[str]], root: Path) -> int:
    """Run the lanes at once, and what failed again."""
    running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for n, lane in enumerate(lanes):
            kept = stack.enter_context(tempfile.TemporaryFile())
            words = [*PYTEST, "-o", f"cache_dir={base / str(n)}", *lane]
            process = subprocess.Popen(words, cwd=root, stdout=kept, stderr=subprocess.STDOUT)
            stack.callback(_end, process)
            running.append((process, kept))
        worst = max(_told(process, kept) for process, kept in running)
        failed = [name for n in range(len(lanes)) for name in _failures(base / str(n))]
    if worst != SOME_FAILED or not 0 < len(failed) <= A_FEW:
        return worst
    print(f"\n{len(failed)} failed while four lanes ran; once more, alone:", flush=True)
    code = subprocess.call([*PYTEST, *failed], cwd=root)
    if code == 0:
        print("unsteady, failed once and passed alone:", *failed, sep="\n  ")
    return code


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def _told(process: "subprocess.Popen[bytes]", kept: IO[bytes]) -> int:
    """Wait for a lane, and print what it said."""
    code = process.wait()
    kept.seek(0)
    while part := kept.read(1 << 16):
        os.write(1, part)
    return code


def _failures(cache: Path) -> list[str]:
    """Return the tests that failed, as pytest's cache of a lane names them."""
    try:
        return list(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("frozen", "golden", "__pycache__")
    return path.name.startswith("test_")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
