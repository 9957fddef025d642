"""Noticing that the program is blocked on its input: after a short silence, and twice in a row."""

from __future__ import annotations

from tenuto.keeper import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenuto.keeper.keeper import Keeper

_FIRST_S = 0.06
_MOST_S = 5.0
_WHILE_WAITING_S = 0.25


class Asking:
    """Looks now and then, the less often the longer nothing moved."""

    def __init__(self, keeper: Keeper) -> None:
        """Look for this keeper."""
        self._keeper = keeper
        self._pause = _FIRST_S
        self._seen = 0

    def soon(self) -> None:
        """Something moved: begin anew."""
        keeper = self._keeper
        self._pause = _FIRST_S
        # a session's cells ask for themselves, and what a driver started asks nobody but that
        elsewhere = keeper.cells is not None or keeper.job.get("tether")
        if not keeper.ended and not elsewhere:
            keeper.loop.after(_FIRST_S, self.look)
        if keeper.waiting == "input":
            self._seen = 0

    def look(self) -> None:
        """See whether the program waits for input, and record what changed."""
        keeper = self._keeper
        if keeper.exited:
            return
        blocked = self.blocked()
        self._seen = self._seen + 1 if blocked else 0
        if self._seen >= 2 and not keeper.waiting:
            keeper.waiting = "input"
            keeper.writer.event("waited", on="input")
        elif not blocked and keeper.waiting == "input":
            keeper.continued()
        self._pause = _FIRST_S if blocked else min(self._pause * 2, _MOST_S)
        keeper.loop.after(self._pause if not keeper.waiting else _WHILE_WAITING_S, self.look)

    def blocked(self) -> bool:
        """Tell whether the program is blocked on its stdin right now."""
        child = self._keeper.child
        if self._keeper.channel.reading:
            return child.stdin.fd >= 0 and not child.stdin.pending
        if self._keeper.cell is not None:
            return child.stdin.awaited_by(self._keeper.cell.readers())
        return child.stdin.awaited_by([child.pid, *procfs.descendants(child.pid)])

    def moved(self) -> None:
        """Input was sent or asked for: the program may go on."""
        if self._keeper.waiting == "input":
            self._keeper.continued()
        self._seen = 0
