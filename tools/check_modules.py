"""Fail when a module in src is too long to be read in one sitting."""

import sys
from pathlib import Path

LIMIT = 450
SUFFIXES = {".py", ".mjs", ".cjs", ".ts"}


def main() -> int:
    """Print every module over the limit; 1 if there is one."""
    source = Path(__file__).resolve().parent.parent / "src"
    modules = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
    too_long = 0
    for path in modules:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LIMIT:
            too_long += 1
            print(f"{path.relative_to(source.parent)}: {lines} lines, at most {LIMIT}")
    print(f"{len(modules)} modules, {too_long} over {LIMIT} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
