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
    if n % 3 == 0:
        return "Fizz"
    if n % 5 == 0:
        return "Buzz"
    return str(n)


if __name__ == "__main__":
    print(" ".join(fizzbuzz(n) for n in range(1, 16)))
"""
_FIX = '    if n % 15 == 0:\n        return "FizzBuzz"\n'
_RIGHT = _CODE.replace("(n):\n", f"(n):\n{_FIX}", 1)
_WANTED = "1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz"
_ASKED = f"It must print {_WANTED!r}"


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


def _use(seen: Seen, why: str, command: str, name: str = "", **arguments: str) -> Answer:
    """Return a call of a shell, or of a tool for files in its place; else say that there is none."""
    if any(one in seen.tools for one in _SHELLS):
        return Say(f"{LABEL} {why}", _shell(seen, command))
    if name in seen.tools:
        return Say(f"{LABEL} {why}", Call(name, **arguments))
    return f"{LABEL} I was given neither a shell nor {name}, so I did nothing."


def _look(seen: Seen) -> Answer:
    return _use(seen, "I look at what is there.", "ls -la", "list_files")


def _designed(seen: Seen) -> Answer:
    del seen
    return (
        f"{LABEL} The design: one file, {_FILE}, with a function fizzbuzz(n) that returns a word, "
        "and a main part that prints the words of 1 to 15. The reviewer runs it and compares."
    )


def _write(seen: Seen) -> Answer:
    """Write it with a mistake in it; rightly, once a reviewer has said so."""
    return _written(seen, _RIGHT if _ASKED in seen.text else _CODE)


def _write_rightly(seen: Seen) -> Answer:
    return _written(seen, _RIGHT)


def _written(seen: Seen, code: str) -> Answer:
    command = f"cat > {_FILE} <<'END'\n{code}END\npython3 {_FILE}"
    return _use(seen, "I write it.", command, "write_file", path=_FILE, content=code)


def _printed(seen: Seen) -> str:
    """Return what a program printed, without what the tool says about its run."""
    return seen.last.partition("\n\nExecution ")[0]


def _built(seen: Seen) -> Answer:
    ran = "1 2 Fizz" in seen.last
    return f"{LABEL} {_FILE} is written" + (
        f"; it prints:\n{_printed(seen)}" if ran else ", not run."
    )


def _check(seen: Seen) -> Answer:
    command = f"cat {_FILE} && python3 {_FILE}"
    return _use(seen, "I look at it and run it.", command, "read_file", path=_FILE)


def _reviewed(seen: Seen) -> Answer:
    if _WANTED in seen.last:
        return f"{LABEL} I ran {_FILE}: it prints what it must.\n\nVerdict: approved"
    if "1 2 Fizz" not in seen.last and "n % 15" in seen.last:
        return f"{LABEL} I read {_FILE}, without a shell to run it.\n\nVerdict: approved"
    return f"{LABEL} {_ASKED}, and does not:\n{_printed(seen)}\n\nVerdict: send back"


def _speaks(*words: str) -> Callable[[Seen], bool]:
    def fits(seen: Seen) -> bool:
        told = seen.text.lower()
        return any(word in told for word in words)

    return fits


def _named(*names: str) -> Callable[[Seen], bool]:
    return _speaks(*(f"you are {one}" for one in names), f"role: {names[0].split()[-1]}")


def load_demo(model: Model) -> None:
    """Let a model play three roles, picked by what their prompts say they are.

    The developer's first work has a mistake, the reviewer finds it by running it, and sends it back.
    """
    model.when(_named("a reviewer", "the reviewer"), *[_check, _reviewed] * 4)
    model.when(_named("an architect", "the architect"), *[_look, _designed] * 4)
    roles = _named("a developer", "a senior developer", "the developer")
    model.when(roles, *[_write, _built] * 4)
    model.play(*[_write_rightly, _built] * 4)


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
