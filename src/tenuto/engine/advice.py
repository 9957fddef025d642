"""What to do next about an execution, as far as its tape and what was started inside it tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.core.states import State
from tenuto.engine import hints
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.core.execution import Execution
    from tenuto.core.ports import Store
    from tenuto.stores.layout import Project

_LAST_WORDS = 20
_LAST_BYTES = 64 * 1024


def advise(project: Project, index: Store, execution: Execution) -> str:
    """Return the next step to take, or an empty text."""
    folder = project.folder(execution.id)
    if execution.state is State.FAILED:
        if execution.spec is not None and execution.spec.task:
            from tenuto.engine.stopped import again  # few are tasks

            if hint := again(folder, execution.id):
                return hint  # what its agents last said is no sign of what to do
        return hints.suggest(execution, _last_words(folder))
    hint = hints.suggest(execution, "")
    if execution.state is State.LOST:
        from tenuto.engine import inside  # few are

        hint = "; ".join(filter(None, (hint, inside.hint(project, index, execution.id))))
    return hint


def _last_words(folder: str) -> str:
    try:
        with TapeReader(folder) as reader:
            last = reader.tail(_LAST_WORDS, _LAST_BYTES)
            return b"".join(frame.body for frame in last).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
