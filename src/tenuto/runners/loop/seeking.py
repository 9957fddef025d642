"""Lists or searches a folder, as a program of its own: `python -I -S seeking.py`, JSON on stdin.

A regular expression can take for ever, and holds the interpreter while it does. In a process of its
own it can be ended. Standard library only; links are never followed, and only regular files are read.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator

Rule = tuple["re.Pattern[str]", bool, bool, str]
_SKIPPED = frozenset({".git", ".tenuto", ".hg", ".svn"})
_DEPTH_MOST = 64
_FILE_MOST = 8 * 1024 * 1024
_SHOWN_MOST = 400
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def translate(glob: str) -> str:
    """Return a regular expression for a pattern as .gitignore has them."""
    out, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif glob.startswith("**", at):
            out, at = out + ".*", at + 2
        elif glob[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif glob[at] == "?":
            out, at = out + "[^/]", at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inner = glob[at + 1 : end].replace("\\", "\\\\")
            inner = "^" + inner[1:] if inner.startswith("!") else inner
            out, at = out + f"[{inner}]", end + 1
        else:
            out, at = out + re.escape(glob[at]), at + 1
    return out


def rules_of(text: str, base: str) -> list[Rule]:
    """Return the rules of a .gitignore; those that make no sense are left out."""
    rules: list[Rule] = []
    for one in text.splitlines():
        line = one.strip()
        if not line or line.startswith("#"):
            continue
        negated = line.startswith("!")
        line = line.removeprefix("!").removeprefix("\\")
        only_folders = line.endswith("/")
        line = line.rstrip("/")
        anchored = "/" in line
        pattern = translate(line.lstrip("/"))
        try:
            rule = re.compile(pattern if anchored else f"(?:.*/)?{pattern}")
        except re.error:
            continue
        rules.append((rule, negated, only_folders, base))
    return rules


def ignored(path: str, is_folder: bool, rules: list[Rule]) -> bool:
    """Tell whether the last rule that fits says so."""
    verdict = False
    for rule, negated, only_folders, base in rules:
        if only_folders and not is_folder:
            continue
        if rule.fullmatch(path[len(base) :]):
            verdict = not negated
    return verdict


def _read(fd: int, name: str, most: int) -> bytes | None:
    """Return a regular file's content, None if it is something else, or too large."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            return None
        file = os.open(name, _FILE, dir_fd=fd)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        return opened.read(most)


def _own_rules(fd: int, base: str) -> list[Rule]:
    data = _read(fd, ".gitignore", 1 << 20)
    return rules_of(data.decode("utf-8", "replace"), base) if data else []


def walk(fd: int, base: str, rules: list[Rule], depth: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yield folder descriptor, name and path of every file below, in order."""
    rules = rules + _own_rules(fd, base)
    with os.scandir(fd) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        path = base + entry.name
        if entry.name in _SKIPPED or ignored(path, is_folder, rules):
            continue
        if not is_folder:
            yield fd, entry.name, path
            continue
        if depth >= _DEPTH_MOST:
            continue
        try:
            below = os.open(entry.name, _FOLDER, dir_fd=fd)
        except OSError:
            continue  # gone, unreadable, or a link by now
        try:
            yield from walk(below, path + "/", rules, depth + 1)
        finally:
            os.close(below)


def below(root: str, parts: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield every file below a folder of the root, or the file itself."""
    fd, base, rules = os.open(root, _FOLDER), "", list[Rule]()
    for number, part in enumerate(parts):
        rules += _own_rules(fd, base)
        try:
            inner = os.open(part, _FOLDER, dir_fd=fd)
        except NotADirectoryError:
            if number == len(parts) - 1:
                yield fd, part, base + part
                return
            raise
        os.close(fd)
        fd, base = inner, f"{base}{part}/"
    yield from walk(fd, base, rules)


def matches(data: bytes, path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of a file that match."""
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if pattern.search(line):
            shown = line if len(line) <= _SHOWN_MOST else line[:_SHOWN_MOST] + " …"
            yield f"{path}:{number}: {shown}"


def run(asked: dict[str, object]) -> Iterator[str]:
    """Yield lines of the answer."""
    parts = [str(one) for one in list(asked["parts"])]  # type: ignore[call-overload]
    glob = str(asked.get("glob") or "")
    wanted = re.compile(translate(glob) if "/" in glob else f"(?:.*/)?{translate(glob)}")
    pattern = re.compile(str(asked["pattern"])) if asked.get("pattern") else None
    for fd, name, path in below(str(asked["root"]), parts):
        if glob and not wanted.fullmatch(path):
            continue
        if pattern is None:
            yield path
            continue
        data = _read(fd, name, _FILE_MOST)
        if data and b"\0" not in data[:8192]:
            yield from matches(data, path, pattern)


def main() -> int:
    """Answer what stdin asks, up to so many lines."""
    asked = json.load(sys.stdin)
    # names may be any bytes
    out = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    most = int(asked["most"])
    try:
        for number, line in enumerate(run(asked)):
            if number >= most:
                print(f"… (more than {most}; narrow it)", file=out)
                break
            print(line, file=out)
    except re.error as error:
        print(f"not a regular expression: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return 2
    finally:
        out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
