"""Sleeping on a watch in an event loop."""

from __future__ import annotations

import asyncio

from tenuto.engine.watch import Watch


class Bell:
    """Wakes a coroutine when a watch has news; its descriptor stays registered between the naps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.before_close = self._let_go
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._nap: asyncio.Future[None] | None = None

    async def sleep(self, at_most: float | None) -> None:
        """Sleep until there is news, or for so long."""
        if rest := self._watch.rest:
            self._let_go()  # the loop would be woken for each of them
            await asyncio.sleep(rest)
        bounds = [bound for bound in (at_most, self._watch.pause) if bound is not None]
        timeout = min(bounds) if bounds else None
        fd = self._watch.fileno()
        if fd < 0:
            await asyncio.sleep(timeout or 0)
            return
        if fd != self._fd:
            self._let_go()
            self._fd = fd
            self._loop.add_reader(fd, self._ring)
        self._nap = self._loop.create_future()
        timer = None if timeout is None else self._loop.call_later(timeout, self._ring)
        try:
            await self._nap
        finally:
            self._nap = None
            if timer is not None:
                timer.cancel()

    def _ring(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Forget the descriptor, before it is closed."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1
