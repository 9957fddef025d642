"""Who does a piece of work: its type, how complex it is, and the role and model tier that follow.

The same text always gives the same choice, and the choice says why. What the user named is never
changed. All figures are values: settings may replace any of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from tenuto.core.errors import UnknownName

Tier = Literal["fast", "main", "heavy"]
TIERS: tuple[Tier, ...] = ("fast", "main", "heavy")
Complexity = Literal["trivial", "simple", "moderate", "complex", "architectural"]
LEVELS: tuple[Complexity, ...] = ("trivial", "simple", "moderate", "complex", "architectural")
_HARD: tuple[Complexity, ...] = ("moderate", "complex", "architectural")


class Role(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent is told that it is, and the models that it works with."""

    text: str
    tier: Tier = "main"
    easy: Tier | None = None
    """The tier for trivial and simple work, where that is another."""
    skills: tuple[str, ...] = ()
    """Skills that everyone in this role is given."""
    part: str = ""
    """What it does, and leaves to others, in a handoff."""


ROLES: dict[str, Role] = {
    "product": Role(
        "You are a product agent. You focus on requirements, user needs, and acceptance criteria.",
        part="say what is needed and how one sees that it is done; write no code",
    ),
    "architect": Role(
        "You are an architect agent. You focus on system design, architecture decisions, "
        "and technical planning.",
        "heavy",
        part="design the solution and say what is to be changed where, so that others can build "
        "it without asking; do not build it",
    ),
    "senior": Role(
        "You are a senior developer agent. You focus on complex implementation, code review, "
        "and technical leadership.",
        "heavy",
        part="do what is hard in it, by the work of those before you where there is any, and see "
        "that it works",
    ),
    "developer": Role(
        "You are a developer agent. You focus on implementing features, writing tests, "
        "and following established patterns.",
        easy="fast",
        part="build it, by the work of those before you where there is any, and see that it works",
    ),
    "reviewer": Role(
        "You are a reviewer agent. You focus on code review, quality assurance, "
        "and identifying issues.",
        "heavy",
        part="look at what really was changed, not only at what is said about it; change nothing",
    ),
    "ops": Role(
        "You are an ops agent. You focus on deployment, infrastructure, and operational concerns.",
        part="see to it that this can be deployed and run",
    ),
}  # fmt: skip


_TYPES = {
    "architecture": 40, "feature": 25, "refactor": 20, "bugfix": 15, "test": 10,
    "documentation": 5, "other": 15,
}  # fmt: skip
_WORDS = {
    "architecture": 15, "design": 15, "migrate": 12, "refactor": 10, "integrate": 10,
    "implement": 8, "add": 5, "create": 5, "fix": 3, "update": 3,
}  # fmt: skip
_FILES = {1: 2, 3: 5, 5: 10}
_LEAST: dict[Complexity, int] = {
    "architectural": 50, "complex": 35, "moderate": 20, "simple": 10, "trivial": 0,
}  # fmt: skip
_WORKERS: dict[Complexity, str] = {
    "architectural": "architect", "complex": "senior", "moderate": "developer",
    "simple": "developer", "trivial": "developer",
}  # fmt: skip
_SIGNS: dict[str, tuple[str, ...]] = {
    "bugfix": ("fix", "fixes", "bug", "bugs", "bugfix", "hotfix", "crash", "crashes", "broken",
               "regression", "repair", "debug"),
    "test": ("test", "tests", "testing", "coverage"),
    "documentation": ("document", "documentation", "docs", "readme", "docstring", "docstrings",
                      "changelog", "tutorial"),
    "refactor": ("refactor", "refactoring", "restructure", "rename", "simplify", "extract",
                 "deduplicate", "migrate", "cleanup"),
    "architecture": ("architecture", "architect", "design", "redesign"),
    "feature": ("implement", "build", "support", "introduce", "integrate", "feature"),
}  # fmt: skip
_VERBS = {
    "add": "feature", "create": "feature", "make": "feature", "write": "feature",
    "update": "other", "improve": "other", "change": "other",
}  # fmt: skip


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The figures behind a choice."""

    types: dict[str, int] = msgspec.field(default_factory=_TYPES.copy)
    """What each type of task adds to the score."""
    words: dict[str, int] = msgspec.field(default_factory=_WORDS.copy)
    """What a word of the text adds, once, whatever its case."""
    files: dict[int, int] = msgspec.field(default_factory=_FILES.copy)
    """What so many files, at the most, add."""
    many_files: int = 15
    """What more files than those add."""
    levels: dict[Complexity, int] = msgspec.field(default_factory=_LEAST.copy)
    """The least score of each level."""
    roles: dict[Complexity, str] = msgspec.field(default_factory=_WORKERS.copy)
    """Who works at each level."""
    signs: dict[str, tuple[str, ...]] = msgspec.field(default_factory=_SIGNS.copy)
    """Words that tell a type; the first one in the text decides."""
    verbs: dict[str, str] = msgspec.field(default_factory=_VERBS.copy)
    """Words that leave it to what follows in the same phrase, and the type if nothing does."""


TABLES = Tables()


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was chosen for a piece of work, and why."""

    type: str
    complexity: Complexity
    score: int
    role: str
    tier: Tier
    reason: str
    model: str = ""
    """A model that the user named; empty where the tier decides."""


_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# where a phrase ends: after these, a word tells of something else than what is to be done
_BREAK = re.compile(
    r"[.,;:!?()\n]|\b(?:and|then|so|that|which|to|for|in|on|of|with|from|by|when)\b", re.IGNORECASE
)


def unknown_name(what: str, name: object, known: Collection[str]) -> UnknownName:
    """Return the error for a name that is none of the known ones, which it lists."""
    listed = ", ".join(sorted(known)) or "there are none"
    return UnknownName(f"there is no {what} {str(name)[:80]!r}", f"known: {listed}")


def infer_type(text: str, tables: Tables = TABLES) -> tuple[str, str]:
    """Return the type of task that a text tells, and the word that told it (or nothing)."""
    told = {word: kind for kind, words in tables.signs.items() for word in words}
    for phrase in _phrases(text):
        words = [match.lower() for match in _WORD.findall(phrase)]
        for at, word in enumerate(words):
            if word in told:
                return told[word], word
            if word in tables.verbs:
                # "add tests" is a test and "add a flag" a feature
                after = next((one for one in words[at + 1 :] if one in told), None)
                return (told[after], f"{word} … {after}") if after else (tables.verbs[word], word)
    return "other", ""


def _phrases(text: str) -> Iterator[str]:
    return (phrase for phrase in _BREAK.split(text) if phrase)


def choose(
    text: str,
    *,
    files: Collection[str] = (),
    type: str | None = None,
    role: str | None = None,
    model: str | None = None,
    tables: Tables = TABLES,
    roles: Mapping[str, Role] = ROLES,
) -> Choice:
    """Return what fits a piece of work; what is named here is taken as it is.

    `model` is a tier or a model's name. Raises UnknownName for a type or a role that is not known.
    """
    kind, why = _type(text, type, tables)
    score, parts = _score(text, kind, len(set(files)), tables)
    complexity = _level(score, tables)
    reasons = [
        f"type {kind} ({why})",
        f"complexity {complexity} (score {score} = {parts})",
    ]
    chosen = tables.roles.get(complexity, "developer") if role is None else role
    if chosen not in roles:
        raise unknown_name("role", chosen, roles)
    reasons.append(f"role {chosen} ({'as asked' if role else f'{complexity} work'})")
    tier, how = _tier(chosen, complexity, model, roles)
    named = model if model and model not in TIERS else ""
    reasons.append(f"model {named} (as asked)" if named else f"model tier {tier} ({how})")
    return Choice(kind, complexity, score, chosen, tier, ", ".join(reasons), named)


def _type(text: str, asked: str | None, tables: Tables) -> tuple[str, str]:
    if asked is not None:
        if asked not in tables.types:
            raise unknown_name("task type", asked, tables.types)
        return asked, "as asked"
    kind, word = infer_type(text, tables)
    if kind not in tables.types:
        raise unknown_name("task type", kind, tables.types)
    return kind, f"by the words {word!r}" if word else "no word tells another"


def _score(text: str, kind: str, files: int, tables: Tables) -> tuple[int, str]:
    score = tables.types[kind]
    parts = [f"{kind} {score}"]
    said = {match.lower() for match in _WORD.findall(text)}
    for word, worth in tables.words.items():
        if word.lower() in said:
            score += worth
            parts.append(f"{word!r} {worth}")
    if files:
        worth = next(
            (tables.files[most] for most in sorted(tables.files) if files <= most),
            tables.many_files,
        )
        score += worth
        parts.append(f"{files} file{'s' if files > 1 else ''} {worth}")
    return score, " + ".join(parts)


def _level(score: int, tables: Tables) -> Complexity:
    for level in reversed(LEVELS):
        least = tables.levels.get(level)
        if least is not None and score >= least:
            return level
    return "trivial"


def _tier(
    role: str, complexity: Complexity, asked: str | None, roles: Mapping[str, Role]
) -> tuple[Tier, str]:
    if asked in TIERS:
        return asked, "as asked"
    who = roles[role]
    if who.easy is None:
        return who.tier, f"{role}'s"
    if complexity in _HARD:
        return who.tier, f"{role}'s for {complexity} work"
    return who.easy, f"{role}'s for {complexity} work"
