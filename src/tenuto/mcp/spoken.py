"""Hints of the engine name commands and flags; here they become the tools' calls and arguments."""

from __future__ import annotations

import re
import shlex

_ID = r"([0-9a-f][0-9a-f-]{3,35})\b"
_RESUME = re.compile(
    r"tenuto resume((?: --force| --from [0-9A-Z]+| --cwd (?:'[^']*'|[^\s;]+)| " + _ID + r")+)"
)
_CALLS = tuple(
    (re.compile(pattern), spoken)
    for pattern, spoken in (
        (rf"tenuto (approve|deny|kill) {_ID}", r'\1(execution_id="\2")'),
        (rf"see: tenuto tree {_ID}", 'see list(which="running")'),
        (rf"tenuto interrupt {_ID}", r'engine_interrupt(execution_id="\1")'),
        (
            rf"(?:see: )?tenuto show {_ID} --(?:checkpoints|state)",
            r'engine_checkpoint(execution_id="\1", action="list")',
        ),
        (rf"(?:see: )?tenuto show {_ID}", r'see engine_status(execution_id="\1")'),
        (rf"(?:see:? )?tenuto logs (?:-f )?{_ID}", r'see output(execution_id="\1")'),
        (rf"tenuto send {_ID} TEXT", r'send_input(execution_id="\1", text=TEXT)'),
        (rf"tenuto clear {_ID}", r'execute(action="clear_history", executionId="\1")'),
        (r"tenuto budget --set (\w+)=AMOUNT", r"engine_budget(\1=AMOUNT)"),
        (r"tenuto doctor (?=shows|says)", "engine_status() "),
        (r"(?:see: |see )?`?tenuto doctor\b`?(?! --)", "see engine_status()"),
        (r"see: tenuto ps --kind task", "see engine_status()"),
        (r"(?:see: |list them with: |list: )?tenuto ps -a", 'see list(which="all")'),
        (r"see: tenuto task -h", "see the tool's description"),
        (r"--cwd DIR", 'workingDirectory="DIR"'),
        (r"--from (\w+)", r"from=\1"),
        (r"--cwd\b", "workingDirectory"),
        (r"--lang\b", "language"),
        (r"--(since|until|deadline|idle|engine|session|env)\b", r"\1"),
    )
)


def spoken(hint: str) -> str:
    """Return a hint with the tools' calls in place of the commands."""
    hint = _RESUME.sub(_resume, hint)
    for pattern, call in _CALLS:
        hint = pattern.sub(call, hint)
    return hint


def _resume(found: re.Match[str]) -> str:
    words = iter(shlex.split(found[1]))
    given: dict[str, str] = {}
    for word in words:
        if word == "--force":
            given["force"] = "true"
        elif word == "--from":
            given["from"] = next(words)
        elif word == "--cwd":
            given["workingDirectory"] = f'"{next(words)}"'
        else:
            given = {"execution_id": f'"{word}"', **given}
    return f"engine_resume({', '.join(f'{name}={value}' for name, value in given.items())})"
