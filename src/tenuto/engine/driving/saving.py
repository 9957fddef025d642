"""The driver's state file: made from its own tape in a thread, so that no step waits for it."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tenuto.core.state import ExecutionState, StateFold
from tenuto.core.task_events import Checkpointed, Warned
from tenuto.engine.driving.teller import Teller
from tenuto.stores.states import clear_unfinished, keep_state, sync_names, write_state
from tenuto.stores.tape import TapeReader

_SHARE = 20  # of all time at most one in so many goes into saving


class Saver:
    """Keeps the state file of one task up to date."""

    def __init__(
        self, teller: Teller, folder: str, execution_id: str, every: float, keep: int
    ) -> None:
        """Save what the tape has, not oftener than every so many seconds; `keep` those asked for."""
        self._teller = teller
        self._folder = folder
        self._every = every
        self._keep = keep
        self._fold = StateFold(execution_id)
        self._reader = TapeReader(folder)
        self._read = 0
        self._thread = ThreadPoolExecutor(1, "saver")
        self._planned: asyncio.TimerHandle | None = None
        self._saving = self._dirty = self._closed = False
        self._next = 0.0
        self._asked: set[asyncio.Task[None]] = set()
        self._warned = False
        self._state()
        self._told = self._read

    def begin(self) -> None:
        """Save from here on, at once for a start; what an earlier life left half written goes."""
        clear_unfinished(self._folder)
        sync_names(self._folder)
        self._teller.told = self._changed
        self._plan()

    def _changed(self, events: int) -> None:
        self._told += events
        if self._saving:
            self._dirty = True
        elif self._planned is None:
            self._plan()

    def _plan(self) -> None:
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._planned = loop.call_later(max(0.0, self._next - time.monotonic()), self._go)

    def _go(self) -> None:
        self._planned = None
        self._saving, self._dirty = True, False
        expected = self._told
        loop = asyncio.get_running_loop()
        saving = loop.run_in_executor(self._thread, self._save, False)

        def saved(future: asyncio.Future[float]) -> None:
            self._saving = False
            took = 0.0
            if future.cancelled():
                return
            if isinstance(future.exception(), OSError):
                self._tell_of(str(future.exception()))
            elif future.exception() is None:
                took = future.result()
                self._warned = False
            self._next = time.monotonic() + max(self._every, _SHARE * took)
            # what was told just before may not have been on the tape yet
            if self._dirty or self._read < expected:
                self._plan()

        saving.add_done_callback(saved)

    def _tell_of(self, why: str) -> None:
        if not self._warned and not self._closed:
            self._warned = True
            text = f"the state file cannot be written ({why}); the tape has everything"
            self._teller.tell(Warned(text=text, about="state"))

    # In the thread

    def _state(self) -> ExecutionState:
        for frame in self._reader.new_events():
            self._read += self._fold.apply(frame.seq, frame.time_ns, frame.body)
        return self._fold.state()

    def _save(self, safe: bool) -> float:
        began = time.monotonic()
        write_state(self._folder, self._state(), safe)
        return time.monotonic() - began

    def _kept(self) -> tuple[str, ExecutionState]:
        state = self._state()
        return keep_state(self._folder, state, self._keep), state

    # On request, and at the end

    def checkpoint(self, key: str) -> None:
        """Save all that was told so far, and say so on the tape, under this key."""
        task = asyncio.create_task(self._checkpoint(key))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _checkpoint(self, key: str) -> None:
        await self._teller.safe()  # what is told is on the tape, and that on disk
        loop = asyncio.get_running_loop()
        try:
            path, state = await loop.run_in_executor(self._thread, self._kept)
        except OSError as error:
            await self._teller.safe(Checkpointed(key=key, error=str(error)))
            return
        await self._teller.safe(
            Checkpointed(key=key, seq=state.seq, path=path, sha256=state.sha256)
        )

    async def end(self) -> None:
        """Answer what was asked, save once more, safe on disk, and stop."""
        self._closed = True
        if self._planned is not None:
            self._planned.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._save, True)
        except OSError as error:
            print(f"tenuto: the state file cannot be written: {error}", file=sys.stderr)
        self._thread.shutdown()
        self._reader.close()
