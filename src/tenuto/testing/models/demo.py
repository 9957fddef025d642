"""Scripts from files, and the demo: an architect, a developer and a reviewer that use tools.

They say what they are: a scripted model. Nobody is to take their words for a model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from tenuto.core.budget import Tokens
from tenuto.testing.models.scripts import By
from tenuto.testing.models.server import Model
from tenuto.testing.models.shapes import listed, mapped
from tenuto.testing.models.steps import Answer, Call, Cut, Fail, Overflow, Say, Seen, Step

LABEL = "[scripted model, no real model behind it]"
_SHELLS = (
    "execute",
    "run_command",
    "shell",
    "bash",
    "Bash",
    "exec_command",
    "run_shell_command",
)
_FILE = "fizzbuzz.py"
_CODE = """\
def fizzbuzz(n):
    return "FizzBuzz"[4 * (n % 3 > 0) : 8 - 4 * (n % 5 > 0)] or str(n)


if __name__ == "__main__":
    print(" ".join(fizzbuzz(n) for n in range(1, 16)))
"""
_WANTED = "1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz"


def _shell(seen: Seen, command: str) -> Call:
    """Return a call of whatever shell the runtime has, with the arguments that its schema asks for."""
    for name in _SHELLS:
        tool = seen.tools.get(name)
        if tool is None:
            continue
        fields = mapped(tool.schema.get("properties"))
        if "code" in fields and "language" in fields:
            return Call(name, code=command, language="bash")
        key = next((one for one in ("command", "cmd", "script") if one in fields), "command")
        several = mapped(fields.get(key)).get("type") == "array"
        wanted: dict[str, Any] = {key: ["sh", "-c", command] if several else command}
        required = cast("list[str]", tool.schema.get("required") or [])
        if "description" in required:
            wanted["description"] = "Work on the demo"
        return Call(name, **wanted)
    raise AssertionError(f"no shell among {sorted(seen.tools)}")


def _can(seen: Seen) -> bool:
    return any(name in seen.tools for name in _SHELLS)


def _run(why: str, command: str) -> Callable[[Seen], Answer]:
    def step(seen: Seen) -> Answer:
        if not _can(seen):
            return f"{LABEL} I was given no shell, so I did nothing."
        return Say(f"{LABEL} {why}", _shell(seen, command))

    return step


def _planned(seen: Seen) -> Answer:
    del seen
    plan = {
        "steps": [
            {"id": "write", "task": f"Write {_FILE} and run it.", "role": "developer"},
            {
                "id": "review", "task": f"Review {_FILE}: run it, compare.", "role": "reviewer",
                "depends_on": ["write"], "reviews": "write",
            },
        ]
    }  # fmt: skip
    return f"{LABEL}\n```json\n{json.dumps(plan, indent=2)}\n```"


def _built(seen: Seen) -> Answer:
    works = _WANTED in seen.last
    return f"{LABEL} {_FILE} is written; run, it " + (
        "prints what it should." if works else f"prints something else:\n{seen.last}"
    )


def _reviewed(seen: Seen) -> Answer:
    if _WANTED in seen.last:
        return f"{LABEL} I ran {_FILE} and compared its output. APPROVED"
    return f"{LABEL} CHANGES REQUESTED: {_FILE} should print {_WANTED!r}, but:\n{seen.last}"


def _speaks(*words: str) -> Callable[[Seen], bool]:
    def fits(seen: Seen) -> bool:
        told = seen.text.lower()
        return any(word in told for word in words)

    return fits


def load_demo(model: Model) -> None:
    """Let a model play the three roles, picked by what their prompts say they are."""
    write = f"cat > {_FILE} <<'END'\n{_CODE}END\npython3 {_FILE}"
    look = _run("I look at what is there.", "ls -la")
    model.when(_speaks("you are a reviewer", "you are the reviewer", "role: reviewer"),
               _run("I run it.", f"cat {_FILE} && python3 {_FILE}"), _reviewed)  # fmt: skip
    model.when(_speaks("you are a developer", "you are a senior developer", "you are the developer", "role: developer"),
               _run("I write it and run it.", write), _built)  # fmt: skip
    model.when(_speaks("you are an architect", "you are the architect", "role: architect"),
               look, _planned)  # fmt: skip
    model.play(_run("I write it and run it.", write), _built)


def _call(raw: dict[str, Any]) -> Call:
    return Call(str(raw["call"]), **mapped(raw.get("arguments")))


def _step(raw: Any) -> Step:
    """Return a step from JSON; raises ValueError for what is none."""
    if isinstance(raw, str):
        return raw
    one = mapped(raw)
    times = int(one.get("times", 1))
    if "fail" in one:
        message = str(one.get("message") or f"{LABEL} fails as its script says")
        pause = one.get("retry_after")
        return Fail(int(one["fail"]), message, str(one.get("kind", "")), pause, times)
    if "overflow" in one:
        return Overflow(times)
    said = [str(one["say"])] if "say" in one else []
    calls = [_call(call) for call in [one, *listed(one.get("calls"))] if "call" in call]
    if not said and not calls:
        raise ValueError(f"no step: {json.dumps(raw)[:200]}")
    usage = Tokens(**mapped(one["usage"])) if "usage" in one else None
    answer = Say(*said, *calls, thinking=str(one.get("thinking", "")), usage=usage)
    return Cut(int(one["cut"]), answer, times) if "cut" in one else answer


def load_script(model: Model, text: str) -> None:
    """Let a model play what a JSON text says: `scripts`, each with `steps` and perhaps `when`."""
    document = mapped(json.loads(text))
    scripts = listed(document.get("scripts")) or [document]
    for one in scripts:
        raw = one.get("steps")
        if not isinstance(raw, list):
            raise ValueError("a script has `steps`, a list")
        steps = [_step(step) for step in cast("list[Any]", raw)]
        by: By = "request" if one.get("by") == "request" else "spoken"
        if "when" in one:
            model.when(_speaks(str(one["when"]).lower()), *steps, by=by)
        else:
            model.play(*steps, by=by, bare=bool(one.get("bare", True)))
