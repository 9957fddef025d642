"""Keep a copy of today's keeper, so that later releases can be tried against it.

    python tests/frozen/freeze.py            makes keeper_<protocol>/ where there is none
    python tests/frozen/freeze.py --again    makes it anew: only before that protocol is released

What is frozen is what an old installation would run: the keeper's folder under a package that holds
nothing else. tests/faults/test_fault_old_keeper.py drives every verb against each copy.
"""

import shutil
import sys
from pathlib import Path

FROZEN = Path(__file__).resolve().parent
SOURCE = FROZEN.parent.parent / "src" / "tenuto"
INIT = '"""A frozen keeper of an earlier release; see tests/frozen/freeze.py."""\n'


def protocol() -> int:
    """Return the control protocol's version, without importing anything of ours."""
    for line in (SOURCE / "keeper" / "control.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("PROTOCOL = "):
            return int(line.removeprefix("PROTOCOL = "))
    raise SystemExit("keeper/control.py names no PROTOCOL")


def freeze(again: bool) -> Path:
    """Make the copy and return its folder."""
    target = FROZEN / f"keeper_{protocol()}"
    if target.exists() and not again:
        raise SystemExit(f"{target} is there already; --again replaces it")
    shutil.rmtree(target, ignore_errors=True)
    package = target / "tenuto"
    shutil.copytree(
        SOURCE / "keeper", package / "keeper", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    (package / "__init__.py").write_text(INIT, encoding="utf-8")
    return target


if __name__ == "__main__":
    print(freeze("--again" in sys.argv[1:]))
