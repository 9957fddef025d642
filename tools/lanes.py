"""Run the tests in four lanes at once: most of their time goes into waiting for processes.

Each lane is a pytest of its own over some of the folders, and every folder is in one of them. With
arguments of one's own (`make test ARGS="-k tape"`) there is one pytest, as if this were not here.
"""

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


def main(arguments: list[str]) -> int:
    """Return the worst exit code of all."""
    pytest = str(Path(sys.executable).with_name("pytest"))
    if arguments:
        return subprocess.call([pytest, *arguments], cwd=ROOT)
    names = sorted(path.name for path in (ROOT / "tests").iterdir() if _holds_tests(path))
    rest = [name for name in names if not any(name in lane for lane in LANES)]
    running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
    with ExitStack() as stack:
        for lane in (*LANES, rest):
            folders = [f"tests/{name}" for name in names if name in lane]
            # one cache is enough, and two writers of it are one too many
            own = ["-p", "no:cacheprovider"] if running else []
            kept = stack.enter_context(tempfile.TemporaryFile())
            words = [pytest, *own, *folders]
            process = subprocess.Popen(words, cwd=ROOT, stdout=kept, stderr=subprocess.STDOUT)
            stack.callback(_end, process)
            running.append((process, kept))
        return max(_told(process, kept) for process, kept in running)


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


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("frozen", "golden", "__pycache__")
    return path.name.startswith("test_")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
