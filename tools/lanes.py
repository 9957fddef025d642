"""Run the tests in two lanes at once: most of their time goes into waiting for processes.

Each lane is a pytest of its own over some of the folders, and every folder is in one of them. With
arguments of one's own (`make test ARGS="-k tape"`) there is one pytest, as if this were not here.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What stands here runs beside all the rest; the two take about as long.
FIRST = (
    "cli", "codemode", "codemode_source", "core", "deno", "engine", "engine_unit", "faults",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Return the worst exit code of both."""
    pytest = [str(Path(sys.executable).with_name("pytest"))]
    if arguments:
        return subprocess.call([*pytest, *arguments], cwd=ROOT)
    names = sorted(path.name for path in (ROOT / "tests").iterdir() if _holds_tests(path))
    first = [f"tests/{name}" for name in names if name in FIRST]
    second = [f"tests/{name}" for name in names if name not in FIRST]
    with tempfile.TemporaryFile() as kept:
        # one cache is enough, and two writers of it are one too many
        beside = subprocess.Popen(
            [*pytest, "-p", "no:cacheprovider", *second], cwd=ROOT, stdout=kept, stderr=kept
        )
        try:
            code = subprocess.call([*pytest, *first], cwd=ROOT)
            other = beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        kept.seek(0)
        sys.stdout.flush()
        os.write(1, b"\n")
        while part := kept.read(1 << 16):
            os.write(1, part)
    return code or other


def _holds_tests(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("frozen", "__pycache__")
    return path.name.startswith("test_")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
