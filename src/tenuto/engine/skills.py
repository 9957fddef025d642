"""Skills: markdown files whose text an agent is given; the project's before the user's.

A skill is NAME.md or NAME/SKILL.md and opens with front matter:

    ---
    name: migrations
    description: How this project changes its tables
    triggers: [migration, schema]
    ---
    Write each change as …
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.selection import unknown_name
from tenuto.engine.settings import user_file
from tenuto.engine.textfiles import read_beginning

SKILL_MOST = 64 * 1024  # bytes of one skill
_FOLDERS = (os.path.join("tenuto", "skills"), os.path.join(".claude", "skills"))
_FILES_MOST = 10_000  # looked at in one folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*:(?:\s+(.*))?$")


class Skill(msgspec.Struct, frozen=True):
    """What an agent can be given to read."""

    name: str
    description: str
    triggers: tuple[str, ...]
    """Words of a task that call for it."""
    text: str
    path: str


class SkillProblem(msgspec.Struct, frozen=True):
    """A file that is no skill although it stands among them, and why."""

    name: str
    path: str
    why: str


class Skills:
    """The skills that a project sees."""

    def __init__(self, folders: Sequence[str], inside: str | None = None) -> None:
        """Look in these folders, the first before the others.

        A folder below `inside`, the project, must not be a link to somewhere else.
        """
        self._folders = tuple(folders)
        self._inside = inside

    def all(self) -> tuple[list[Skill], list[SkillProblem]]:
        """Return the skills by name, and the files that cannot be used."""
        found: dict[str, Skill] = {}
        problems: list[SkillProblem] = []
        for one in self._scan():
            if isinstance(one, Skill):
                found.setdefault(one.name, one)
            else:
                problems.append(one)
        return sorted(found.values(), key=lambda skill: skill.name), problems

    def get(self, name: str) -> Skill:
        """Return the skill of that name; raises if there is none, or if its file is broken."""
        known: set[str] = set()
        for one in self._scan():
            if one.name != name:
                known.add(one.name)
            elif isinstance(one, Skill):
                return one
            else:  # one of the same name further on is not what was meant
                raise InvalidInput(
                    f"the skill {name!r} cannot be used: {one.why}", "correct the file"
                )
        raise unknown_name("skill", name, known)

    def triggered(self, text: str) -> list[Skill]:
        """Return the skills one of whose triggers stands in a text, as a word of its own."""
        return [
            skill
            for skill in self.all()[0]
            if any(
                re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text, re.I) for one in skill.triggers
            )
        ]

    def _scan(self) -> Iterator[Skill | SkillProblem]:
        for name, folder, path in self._files():
            try:
                yield _read(name, folder, path)
            except InvalidInput as error:
                yield SkillProblem(name, path, error.message)

    def _files(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, folder and path of everything that could be a skill."""
        for folder in self._folders:
            try:
                entries = sorted(os.listdir(folder))[:_FILES_MOST]
            except OSError:
                continue
            if not self._ours(folder):
                continue
            for entry in entries:
                path = os.path.join(folder, entry)
                inner = os.path.join(path, "SKILL.md")
                if entry.endswith(".md") and entry.lower() != "readme.md":
                    yield entry[: -len(".md")], folder, path
                elif os.path.lexists(inner):
                    yield entry, folder, inner

    def _ours(self, folder: str) -> bool:
        """Tell whether a folder of the project really is one."""
        if self._inside is None or not _within(folder, self._inside):
            return True
        return _within(os.path.realpath(folder), os.path.realpath(self._inside))


def skills_of(root: str, environ: Mapping[str, str], paths: Sequence[str] = ()) -> Skills:
    """Return the skills of a project: of folders that settings name, its own, and the user's."""
    own = [os.path.join(root, folder) for folder in _FOLDERS]
    user = os.path.join(os.path.dirname(user_file(environ)), "skills")
    return Skills([*paths, *own, user], root)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _read(name: str, folder: str, path: str) -> Skill:
    real = os.path.realpath(path)
    if not _within(real, os.path.realpath(folder)):
        raise InvalidInput(f"{path} leads out of its folder, to {real}")
    data, _ = read_beginning(real, SKILL_MOST + 1)
    if len(data) > SKILL_MOST:
        raise InvalidInput(f"{path} is larger than {SKILL_MOST // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: byte {error.start}") from None
    fields, body = front_matter(text, path)
    called = _one(fields, "name", path) or name
    if not _NAME.fullmatch(called):
        raise InvalidInput(f"{path} has the name {called[:80]!r}, which cannot be one")
    if not body.strip():
        raise InvalidInput(f"{path} has no text below its front matter")
    triggers = fields.get("triggers", [])
    if isinstance(triggers, str):
        triggers = [one.strip() for one in triggers.split(",")]
    words = tuple(one for one in triggers if one)
    return Skill(called, _one(fields, "description", path), words, body.strip() + "\n", path)


def _one(fields: Mapping[str, str | list[str]], key: str, path: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise InvalidInput(f"{path}: {key} is a list, one value is wanted")
    return value


def front_matter(text: str, path: str) -> tuple[dict[str, str | list[str]], str]:
    """Return the keys that open a text between two lines of ---, and the text below.

    Takes what people write there: `key: value`, lists in brackets or with dashes, and texts that
    go on in indented lines. Raises InvalidInput with the line's number for anything else.
    """
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise InvalidInput(f"{path}, line 1: no front matter, which begins with a line of ---")
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() == "---"), None)
    if end is None:
        raise InvalidInput(f"{path}, line {len(lines)}: the front matter has no end, a line of ---")
    fields: dict[str, str | list[str]] = {}
    at = 1
    while at < end:
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line)
        if match is None:
            raise InvalidInput(f"{path}, line {at}: {line[:60]!r} is not of the form key: value")
        key, first = match[1], (match[2] or "").strip()
        if key in fields:
            raise InvalidInput(f"{path}, line {at}: {key} stands there twice")
        more: list[str] = []
        while at < end and (not lines[at].strip() or lines[at][0] in " \t-"):
            more.append(lines[at].strip())
            at += 1
        fields[key] = _value(first, more, path, at)
    return fields, "\n".join(lines[end + 1 :])


def _value(first: str, more: list[str], path: str, at: int) -> str | list[str]:
    """Return a value from the rest of its line and the indented lines below it."""
    more = [line for line in more if line]
    if not first and more and all(line == "-" or line.startswith("- ") for line in more):
        return [_plain(line[1:].strip()) for line in more]
    if first.startswith("["):
        whole = " ".join([first, *more])
        if not whole.endswith("]"):
            raise InvalidInput(f"{path}, line {at}: a list has no end, a closing bracket")
        return [_plain(one.strip()) for one in whole[1:-1].split(",") if one.strip()]
    if first in ("|", "|-", "|+"):
        return "\n".join(more)
    if first in (">", ">-", ">+"):
        return " ".join(more)
    return _plain(" ".join([first, *more] if first else more))


def _plain(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
