"""Prompts: what an agent is told, from its role, skills, files, earlier work and the task.

All words come from templates (string.Template), which a project or a user may replace by files of
the same name. What others wrote (files, outputs, reviews) stands between fences that nothing in
it can close, so that it is never taken for our own marks.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template

import msgspec

from tenuto.core.errors import EngineFault, InvalidInput
from tenuto.core.selection import Role, unknown_name
from tenuto.engine.settings import user_file
from tenuto.engine.skills import Skill
from tenuto.engine.textfiles import read_beginning

_SHIPPED = os.path.join(os.path.dirname(__file__), "prompt_templates")
_TEMPLATE_MOST = 256 * 1024
# The placeholders of each template, and those that it cannot do without.
_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "system": (frozenset({"role", "role_text", "skills"}), frozenset({"skills"})),
    "skill": (frozenset({"name", "description", "text"}), frozenset({"text"})),
    "task": (
        frozenset(
            {"role", "change", "task_id", "context", "files", "previous", "feedback", "task", "verdict"}
        ),
        frozenset({"context", "files", "previous", "feedback", "task", "verdict"}),
    ),
    "file": (frozenset({"path", "content"}), frozenset({"path", "content"})),
    "previous": (frozenset({"step", "role", "output"}), frozenset({"output"})),
    "feedback": (frozenset({"step", "role", "output"}), frozenset({"output"})),
    "reviewer": (frozenset({"step", "role"}), frozenset({"step"})),
}  # fmt: skip
TEMPLATES = tuple(sorted(_FIELDS))


class Prompt(msgspec.Struct, frozen=True):
    """What an agent is told: who it is, and what is to be done."""

    system: str
    text: str


class Earlier(msgspec.Struct, frozen=True):
    """What a step said, for one that comes after it."""

    step: str
    role: str
    output: str
    rest: str = ""
    """How the whole can be read, where it is too long to be told."""


class Bounds(msgspec.Struct, frozen=True):
    """How much a prompt may hold, in bytes: of one file, of all; of one output, of all."""

    file: int = 128 * 1024
    files: int = 384 * 1024
    output: int = 64 * 1024
    outputs: int = 192 * 1024


BOUNDS = Bounds()


class Templates:
    """The templates in force: the project's before the user's before our own."""

    def __init__(self, root: str | None = None, environ: Mapping[str, str] | None = None) -> None:
        """Look in the project and in the user's settings folder, as far as they are given."""
        self._folders: list[str] = []
        if root is not None:
            self._folders.append(os.path.join(root, "tenuto", "prompts"))
        if environ is not None:
            self._folders.append(os.path.join(os.path.dirname(user_file(environ)), "prompts"))
        self._read: dict[str, list[tuple[Template, list[str]]]] = {}

    def render(self, name: str, values: Mapping[str, str]) -> str:
        """Return a template with its values; a paragraph whose values are all empty is left out."""
        if name not in _FIELDS:
            raise unknown_name("template", name, _FIELDS)
        if name not in self._read:
            self._read[name] = _paragraphs(self._text(name))
        kept: list[str] = []
        for template, used in self._read[name]:
            if not used or any(values[one] for one in used):
                kept.append(template.substitute(values).strip("\n"))
        return "\n\n".join(kept) + "\n"

    def check(self) -> None:
        """Raise InvalidInput if any template in force cannot be used."""
        for name in _FIELDS:
            self._read[name] = _paragraphs(self._text(name))

    def _text(self, name: str) -> str:
        for folder in self._folders:
            path = os.path.join(folder, f"{name}.md")
            if os.path.lexists(path):
                return _checked(name, path, _read_whole(path))
        path = os.path.join(_SHIPPED, f"{name}.md")
        try:
            return _read_whole(path)
        except InvalidInput as error:
            raise EngineFault(error.message, "install Tenuto anew") from None


def _paragraphs(text: str) -> list[tuple[Template, list[str]]]:
    """Return each paragraph of a template with the placeholders in it."""
    found = [Template(one) for one in re.split(r"\n[ \t]*\n", text.strip("\n"))]
    return [(one, one.get_identifiers()) for one in found]


def build(
    task: str,
    *,
    role: str,
    who: Role,
    cwd: str,
    skills: Iterable[Skill] = (),
    change: str = "",
    task_id: str = "",
    context: str = "",
    files: Sequence[str] = (),
    previous: Sequence[Earlier] = (),
    feedback: Earlier | None = None,
    reviews: str | None = None,
    templates: Templates | None = None,
    bounds: Bounds = BOUNDS,
) -> Prompt:
    """Return the prompt for a step; raises InvalidInput for a file that cannot be shown.

    `reviews` is the step that this one may send back. Files are relative to `cwd`, and inside it.
    """
    said = templates or Templates()
    told = "\n".join(
        said.render("skill", {"name": one.name, "description": one.description, "text": one.text})
        for one in skills
    )
    system = said.render("system", {"role": role, "role_text": who.text, "skills": told})
    review = "" if feedback is None else _outputs("feedback", [feedback], said, bounds)
    text = said.render(
        "task",
        {
            "role": role,
            "change": change,
            "task_id": task_id,
            "context": _own_words(context),
            "files": _files(files, cwd, said, bounds),
            "previous": _outputs("previous", previous, said, bounds),
            "feedback": review,
            "task": task.strip("\n"),
            "verdict": said.render("reviewer", {"step": reviews, "role": role}) if reviews else "",
        },
    )
    return Prompt(system, text)


def fence(content: str) -> str:
    """Return content between two fences, longer than any run of backticks that is in it."""
    longest = max((len(run) for run in re.findall(r"`+", content)), default=0)
    bar = "`" * max(3, longest + 1)
    end = "" if not content or content.endswith("\n") else "\n"
    return f"{bar}\n{content}{end}{bar}"


def _own_words(text: str) -> str:
    """Return the user's words as they are, or fenced where they look like our marks."""
    if re.search(r"^\s{0,3}(#|```|~~~)", text, re.MULTILINE):
        return fence(text.strip("\n"))
    return text.strip("\n")


def _outputs(name: str, given: Sequence[Earlier], said: Templates, bounds: Bounds) -> str:
    room = bounds.outputs
    parts: list[str] = []
    for one in given:
        data = one.output.encode("utf-8", "replace")
        shown = _cut(data, min(bounds.output, room))
        room -= len(shown)
        text = fence(shown.decode()) if data else "(it said nothing)"
        if len(shown) < len(data):
            rest = one.rest or "ask for what you miss"
            text += f"\n(cut here: {len(shown)} of {len(data)} bytes are shown; {rest})"
        parts.append(said.render(name, {"step": one.step, "role": one.role, "output": text}))
    return "\n".join(parts).strip("\n")


def _files(names: Sequence[str], cwd: str, said: Templates, bounds: Bounds) -> str:
    if not names:
        return ""
    room = bounds.files
    parts: list[str] = []
    for path, real in _places(names, cwd).items():
        content, size = _content(path, real, min(bounds.file, room))
        shown = len(content.encode())
        room -= shown
        text = fence(content) if content else "(it is empty)" if not size else ""
        if shown < size:
            begin = f"{text}\n" if text else ""
            from_line = content.count("\n") + 1
            text = (
                f"{begin}(cut here: {shown} of {size} bytes are shown; "
                f"read the rest from the file itself, from line {from_line} on)"
            )
        parts.append(said.render("file", {"path": _marked(path), "content": text}))
    return "\n".join(parts).strip("\n")


def _places(names: Sequence[str], cwd: str) -> dict[str, str]:
    """Return each file's path from the working directory and where it really is, once."""
    base = os.path.realpath(cwd)
    found: dict[str, str] = {}
    for name in names:
        if not name or "\0" in name:
            raise InvalidInput(f"{name!r} is no file's name", "name a file of the project")
        real = os.path.realpath(os.path.join(base, name))
        if not real.startswith(base.rstrip("/") + "/"):
            raise InvalidInput(
                f"the file {name} is outside the working directory {cwd}",
                "name a file below it, or start the task where the file is",
            )
        found.setdefault(os.path.relpath(real, base), real)
    return found


def _content(path: str, real: str, most: int) -> tuple[str, int]:
    """Return the beginning of a text file, at most so many bytes of it, and its whole size."""
    hint = "name a text file that is there, or leave it out"
    # a little more than is shown, so that a binary file is seen for what it is
    data, size = read_beginning(real, max(most, 8192) + 4, hint)
    try:
        decoder = codecs.getincrementaldecoder("utf-8")()
        decoder.decode(data, final=len(data) >= size)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the file {path} is not UTF-8 text: byte {error.start}", hint) from None
    if b"\0" in data:
        raise InvalidInput(f"the file {path} is binary: byte {data.index(0)} is 0", hint)
    return _cut(data, most).decode(), size


def _cut(data: bytes, most: int) -> bytes:
    """Return the beginning of UTF-8 text, whole lines if there are any, no half characters."""
    if len(data) <= most:
        return data
    piece = data[: max(0, most)]
    line = piece.rfind(b"\n") + 1
    if line:
        return piece[:line]
    return piece.decode("utf-8", "ignore").encode()


def _marked(path: str) -> str:
    """Return a path as it is shown: no character in it can end its line or its mark."""
    if "`" in path or not path.isprintable():
        return msgspec.json.encode(path.encode("utf-8", "replace").decode()).decode()
    return f"`{path}`"


def _read_whole(path: str) -> str:
    data, _ = read_beginning(os.path.realpath(path), _TEMPLATE_MOST + 1, "correct or remove it")
    if len(data) > _TEMPLATE_MOST:
        raise InvalidInput(f"{path} is too large for a template", "shorten it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: byte {error.start}", "save it anew") from None


def _checked(name: str, path: str, text: str) -> str:
    """Return the text of a user's template if all its placeholders are known."""
    template = Template(text)
    known, needed = _FIELDS[name]
    if not template.is_valid():
        at = next(m for m in template.pattern.finditer(text) if m.group("invalid") is not None)
        line = text.count("\n", 0, at.start()) + 1
        raise InvalidInput(f"{path}, line {line}: a lone $", "write it as $$")
    used = set(template.get_identifiers())
    listed = ", ".join(f"${one}" for one in sorted(known))
    for one in sorted(used - known):
        raise InvalidInput(f"{path} has the unknown placeholder ${one}", f"known: {listed}")
    for one in sorted(needed - used):
        raise InvalidInput(f"{path} lacks the placeholder ${one}", f"add it; known: {listed}")
    return text
