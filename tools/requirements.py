"""Rewrite tests/requirements.toml, the map from promises to tests, from the promise markers."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LISTING = ROOT / "tests" / "requirements.toml"
NOT_OURS = ("node_modules", "frozen")  # packages with tests of their own; what we released once
HEADER = """\
# Which tests keep which promise. Written by `make requirements` from the markers in tests/
# (@pytest.mark.promise("X5")); tests/test_requirements.py fails while it is out of date.
"""


class Scan(NamedTuple):
    """What the test files hold: every test, and the tests under each promise id."""

    tests: set[str]
    promises: dict[str, set[str]]


def scan(root: Path = ROOT) -> Scan:
    """Read every test file under root/tests, without importing any."""
    found = Scan(set(), {})
    for path in _test_files(root / "tests"):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), name)
        attributed = _collect(tree, name, set(), found)
        for call in _marker_calls(tree):
            if call not in attributed:
                raise ValueError(f"{name}:{call.lineno}: a promise marker that is on no test")
    return found


def _test_files(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in NOT_OURS)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def render(promises: dict[str, set[str]]) -> str:
    """The text of requirements.toml, sorted so that a change shows as one line."""
    lines = [HEADER]
    for promise in sorted(promises, key=_natural):
        lines.append(f'\n"{promise}" = [\n')
        lines += [f'    "{test}",\n' for test in sorted(promises[promise])]
        lines.append("]\n")
    return "".join(lines)


def _collect(
    scope: ast.Module | ast.ClassDef, prefix: str, ids: set[str], found: Scan
) -> set[ast.Call]:
    """Record the tests of one module or class; return the marker calls that reached a test."""
    attributed: set[ast.Call] = set()
    calls = [call for node in scope.body if _is_pytestmark(node) for call in _marker_calls(node)]
    if isinstance(scope, ast.ClassDef):
        calls += [call for node in scope.decorator_list for call in _marker_calls(node)]
    attributed.update(calls)
    ids = ids.union(*(_ids(call, prefix) for call in calls))
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            attributed |= _collect(node, f"{prefix}::{node.name}", ids, found)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            own = [call for mark in node.decorator_list for call in _marker_calls(mark)]
            attributed.update(own)
            test = f"{prefix}::{node.name}"
            found.tests.add(test)
            for promise in ids.union(*(_ids(call, prefix) for call in own)):
                found.promises.setdefault(promise, set()).add(test)
    return attributed


def _is_pytestmark(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets)


def _marker_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.promise"):
            yield node


def _ids(call: ast.Call, where: str) -> set[str]:
    ids = {arg.value for arg in call.args if isinstance(arg, ast.Constant)}
    if not call.args or len(ids) != len(call.args) or not all(isinstance(i, str) for i in ids):
        raise ValueError(f"{where}:{call.lineno}: promise ids are distinct literal strings")
    return {str(promise) for promise in ids}


def _natural(promise: str) -> list[tuple[int, str]]:
    """X2 before X10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", promise)]


if __name__ == "__main__":
    LISTING.write_text(render(scan().promises), encoding="utf-8")
    print(f"wrote {LISTING.relative_to(ROOT)}", file=sys.stderr)
