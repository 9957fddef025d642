"""The tape's one writer: a thread behind a bounded buffer, so that nobody else waits for the disk."""

from __future__ import annotations

import _queue
import _thread
import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable

from tenuto.keeper import frames, rewrite
from tenuto.keeper.control import Watchers
from tenuto.keeper.ear import Ear
from tenuto.keeper.faults import point
from tenuto.keeper.room import Room
from tenuto.keeper.tape_index import TapeIndex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
_BATCH = 1024 * 1024
_BATCH_ITEMS = 256
_RETRY_S = 0.25
_THREADS = 2
_REST_S = 0.0001
_PUMP_READ = 128 * 1024  # small enough to stay in the processor's cache from read to write
_PUMP_MOST = 4 * 1024 * 1024
_IN_TURN = 1 << 8  # on an event's stream number: output that is held back goes first
_ASIDE = 1 << 9  # likewise: nobody needs to be woken for it
_FLAGS = 16  # from this bit on, the flags of a frame
_COST = 256  # of a frame that waits, however small it is

_Item = tuple[int, int, bytes]


class TapeWriter:
    """Appends frames in the order they are given; knows what to do when the disk is full.

    The keeper's loop calls `event`, `output`, `clear` and `finish`; everything else runs in the
    thread. Output that finds no room is held here (the loop stops reading once `backlog` passes
    HIGH_WATER), while events still go through on room that was set aside for them.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Start the thread; `wake` makes the loop look at the fields below."""
        self.fd = -1
        self.disk_full = ""
        self.finished = False
        self._given = 0  # bytes of all frames and their cost here, written by the loop only
        self._accepted = 0  # bytes of output, likewise
        self._pumped = 0  # these are written by the thread only
        self._own = 0  # what it gave itself
        self._written = 0
        self._appended = 0
        self._dropped = 0  # how much of it was cleared
        self._wake = wake
        self._queue: _queue.SimpleQueue[_Item | Callable[[], None]] = _queue.SimpleQueue()
        self._held: deque[_Item] = deque()
        self._later: deque[_Item] = deque()
        self.calls: deque[Callable[[], None]] = deque()  # for the loop to make
        self._unsafe: list[Callable[[str], None]] = []  # who waits for the next sync
        self._syncing = False
        self.watchers = Watchers()
        self._ear = Ear(self.pass_on)
        self._room = Room()
        self._retry_at = 0.0
        self._index = TapeIndex()
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._up = _thread.allocate_lock()
        self._up.acquire()
        _thread.start_new_thread(self._run, ())

    def open(self, tape_fd: int, dir_fd: int, job: dict[str, Any]) -> None:
        """Take over the locked tape; before this nothing may be written."""
        self.fd = tape_fd
        self._dir_fd = dir_fd
        self._index.open(dir_fd)
        self._magic = bytes.fromhex(job["magic"])
        self._seq = int(job["next_seq"])
        self._last_ns = int(job["last_ns"])
        self._offset = os.fstat(tape_fd).st_size
        self._room.open(tape_fd, self._offset)

    # What the loop calls

    @property
    def backlog(self) -> int:
        """Bytes taken but not on the tape yet; many small frames weigh more than they hold."""
        return self._given + self._own - self._written

    @property
    def kept(self) -> int:
        """Bytes of output that are on the tape, or will be; one number of each thread's."""
        return self._accepted + self._pumped - self._dropped

    def event(self, kind: str, in_turn: bool = False, **fields: object) -> None:
        """Append an event; on a full disk it passes the output that waits, unless `in_turn`.

        Raises ValueError for what is no JSON, such as a number that a child made infinite.
        """
        text = json.dumps(
            {"type": kind, **fields}, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        body = text.encode("utf-8", "replace")  # half of a surrogate pair is no text
        self.record(body, in_turn)

    def record(self, body: bytes, in_turn: bool = True) -> None:
        """Append an event that is given as JSON."""
        stream = frames.EVENT | _IN_TURN if in_turn else frames.EVENT
        self._given += len(body) + _COST
        self._give((stream, time.time_ns(), body))

    def aside(self, body: bytes, later: bool = False) -> None:
        """Append an event that can be large or come often, given as JSON; no follower waits for it.

        `later` does not wake the thread for it: it goes with the next one, or with `go_on`.
        """
        self._given += len(body) + _COST
        item = (frames.EVENT | _ASIDE, time.time_ns(), body)
        if later:
            self._later.append(item)
        else:
            self._give(item)

    def go_on(self) -> None:
        """Have what was to be written later written now."""
        while self._later:
            self._put(self._later.popleft())

    def _give(self, item: _Item | Callable[[], None]) -> None:
        self.go_on()
        self._put(item)

    def _put(self, item: _Item | Callable[[], None]) -> None:
        self._queue.put(item)
        self._ear.ring()

    def output(self, stream: int, data: bytes, flags: int = 0) -> None:
        """Append what the program wrote, or logged at a level, which is then in the flags."""
        self._accepted += len(data)
        self._given += len(data) + _COST
        self._give((stream | flags << _FLAGS, time.time_ns(), data))

    def pump(self, fd: int, stream: int, done: Callable[[int, int], None]) -> None:
        """Read a pipe that has plenty in the thread itself; then tell the loop how many bytes and lines.

        Passing bulk from thread to thread would move all of it from one processor to the other.
        """
        self._give(lambda: self._pump(fd, stream, done))

    def attend(self, fd: int, hear: Callable[[], bool], back: Callable[[], None]) -> None:
        """Have the thread read a line, whenever it has nothing else to do; see Ear."""
        self._give(self._ear.lend(fd, hear, back))

    def recall(self) -> None:
        """Ask for the line back."""
        self._give(self._ear.give_back)

    def clear(self) -> None:
        """Drop all output so far from the tape, and say so on it."""
        self._give(self._clear)

    def then(self, call: Callable[[], None]) -> None:
        """Have the loop call this once everything given so far has been dealt with."""
        self._give(lambda: self.pass_on(call))

    def pass_on(self, call: Callable[[], None]) -> None:
        """Have the loop call this; for what is called in the thread."""
        self.calls.append(call)
        self._wake()

    def sync(self, call: Callable[[str], None]) -> None:
        """Have the thread call this, with an error or none, once all given so far is safe on disk."""
        self._give(lambda: self._join_sync(call))

    def _join_sync(self, call: Callable[[str], None]) -> None:
        """Go with the next sync: it comes when what is queued by now is written, for all at once."""
        self._unsafe.append(call)
        if not self._syncing:
            self._syncing = True
            self._queue.put(self._sync)

    def _sync(self) -> None:
        if self._held:  # what they ask about may be among it: once there is room again
            return
        self._syncing = False
        calls, self._unsafe = self._unsafe, []
        point("writer-before-checkpoint")
        error = ""
        try:
            os.fdatasync(self.fd)
        except OSError as problem:
            error = problem.strerror or "sync failed"
        point("writer-after-checkpoint")
        for call in calls:
            call(error)
        if self._queue.empty():
            self._room.lay(self._offset)

    def finish(self) -> None:
        """Sync what was written; `finished` turns true once nothing is held back any more."""
        self._give(self._finish)

    def close(self) -> None:
        """Wait for the thread's end, once `finished`, and let go of the tape and its lock."""
        self._running.acquire()
        self._running.release()
        self._index.close()
        self._ear.close()
        if self.fd >= 0:
            os.close(self.fd)

    # The thread

    def await_rest(self) -> None:
        """Return once the thread waits for work, and those of the executions before are gone.

        A fork copies the locks of the C library as they are: one that a thread held in that moment
        would never be released in the copy.
        """
        self._up.acquire()
        self._up.release()
        while len(os.listdir("/proc/self/task")) > _THREADS:
            time.sleep(_REST_S)

    def _run(self) -> None:
        self._up.release()  # from here on it holds the interpreter's lock, or nothing
        try:
            while not self.finished:
                self._work()
        finally:
            self._running.release()

    def append(self, bodies: list[bytes], saved: Callable[[str], None] | None) -> None:
        """Append events that are given as JSON, in the thread itself; `saved` once they are safe."""
        self._own += sum(len(body) + _COST for body in bodies)
        items = [(frames.EVENT | _IN_TURN, time.time_ns(), body) for body in bodies]
        for first in range(0, len(items), _BATCH_ITEMS):
            self._take(items[first : first + _BATCH_ITEMS])
        if saved is not None:
            self._join_sync(saved)

    def _work(self) -> None:
        """Take what is queued and write it, or try again what was held back."""
        short = bool(self._held or self.disk_full)
        if self._ear.listening and not short and self._queue.empty():
            self._ear.listen()
            return
        pause = max(0.0, self._retry_at - time.monotonic()) if short else None
        try:
            item = self._queue.get(timeout=pause) if pause != 0 else None
        except _queue.Empty:
            item = None
        if item is None:
            self._retry()
            return
        batch: list[_Item] = []
        size = 0
        while not callable(item):
            batch.append(item)
            size += len(item[2])
            if size >= _BATCH or len(batch) >= _BATCH_ITEMS or self._queue.empty():
                break
            item = self._queue.get()
        if batch:
            self._take(batch)
        if callable(item):
            item()

    def _pump(self, fd: int, stream: int, done: Callable[[int, int], None]) -> None:
        size = lines = 0
        while size < _PUMP_MOST and not self._held and self._queue.empty():
            try:
                data = os.read(fd, _PUMP_READ)
            except BlockingIOError:
                break
            if not data:  # the loop finds the end too
                break
            size += len(data)
            lines += data.count(b"\n")
            self._pumped += len(data)
            self._own += len(data) + _COST
            self._take([(stream, time.time_ns(), data)])
        self.pass_on(lambda: done(size, lines))

    def _take(self, batch: list[_Item]) -> None:
        wanted = any(not item[0] & _ASIDE for item in batch)  # the batch itself is used up
        if not self._held:
            try:
                self._append(batch, spare=True)
            except OSError as error:
                self._hold(batch, error)
        else:
            self._hold(batch, None)
        if wanted or self._held:
            self.watchers.notify()

    def _hold(self, batch: list[_Item], error: OSError | None) -> None:
        """Keep output until there is room; let events pass on what was set aside."""
        if error is not None:
            self._retry_at = time.monotonic() + _RETRY_S
            if not self.disk_full:
                self.disk_full = os.strerror(error.errno or errno.ENOSPC)
                self._note("waited", on="disk", detail=self.disk_full)
                self._wake()
        for item in batch:
            if item[0] != frames.EVENT or not self._squeeze(item):
                self._held.append(item)

    def _squeeze(self, item: _Item) -> bool:
        try:
            self._append([item], spare=False)
        except OSError:
            return False
        return True

    def _note(self, kind: str, **fields: str) -> None:
        body = json.dumps({"type": kind, **fields}, separators=(",", ":")).encode()
        item = (frames.EVENT, time.time_ns(), body)
        self._own += len(body) + _COST
        if not self._squeeze(item):
            self._held.append(item)

    def _retry(self) -> None:
        """Write what was held back; where nothing is, only room for more was missing."""
        self._retry_at = time.monotonic() + _RETRY_S
        if not self._held and not self._room.can_grow(self._offset):
            return
        while self._held:
            batch: list[_Item] = []
            size = 0
            for item in self._held:
                batch.append(item)
                size += len(item[2])
                if size >= _BATCH or len(batch) >= _BATCH_ITEMS:
                    break
            taken = len(batch)
            try:
                self._append(batch, spare=True)
            except OSError:
                return
            finally:
                for _ in range(taken - len(batch)):
                    self._held.popleft()
        self.disk_full = ""
        if self._syncing:
            self._sync()
        self._note("continued")
        self.watchers.notify()
        self._wake()

    def _append(self, batch: list[_Item], spare: bool) -> None:
        """Write frames and take them off the batch; after an error, those not written stay in it.

        `spare` leaves the room that is kept for the last words. Where no room can be set aside any
        write may fail, so each frame has its own: what followers may have read is never cut.
        """
        if spare:
            end = self._offset + sum(frames.OVERHEAD + len(item[2]) for item in batch)
            self._room.make(self._offset, end)
        while batch:
            count = len(batch) if self._room.certain else 1
            self._append_whole(batch[:count])
            del batch[:count]

    def _append_whole(self, batch: list[_Item]) -> None:
        buffers: list[bytes] = []
        entries: list[bytes] = []
        seq, last_ns, offset, indexed = self._seq, self._last_ns, self._offset, self._index.last
        output = weight = 0
        for number, time_ns, body in batch:
            stream, flags = number & 0xFF, number >> _FLAGS
            last_ns = max(last_ns, time_ns)
            header, trailer = frames.pack(self._magic, stream, seq, last_ns, body, flags)
            buffers += (header, body, trailer)
            if stream == frames.EVENT or offset - indexed >= frames.INDEX_EVERY:
                entries.append(frames.pack_entry(seq, last_ns, offset, stream))
                indexed = offset
            output += len(body) if stream != frames.EVENT else 0
            weight += len(body) + _COST
            offset += frames.OVERHEAD + len(body)
            seq += 1
        point("writer-before-append")
        self._write(buffers, offset - self._offset)
        point("writer-after-append")
        self._seq, self._last_ns, self._offset, self._index.last = seq, last_ns, offset, indexed
        self._index.add(self.fd, self._magic, offset, entries, later=bool(batch[-1][0] & _ASIDE))
        before = self.backlog
        self._appended += output
        self._written += weight
        if before >= LOW_WATER > self.backlog:
            self._wake()

    def _write(self, buffers: list[bytes], size: int) -> None:
        try:
            done = os.pwritev(self.fd, buffers, self._offset)
            while done < size:
                rest = b"".join(buffers)[done:]
                done += os.pwrite(self.fd, rest, self._offset + done)
        except OSError:
            self._room.clear(self._offset)
            raise

    def _clear(self) -> None:
        self._last_ns = max(self._last_ns, time.time_ns())
        try:
            self._rewrite()
        except OSError:
            self._room.cut(self._offset)  # what was set aside serves this too
            try:
                self._rewrite()
            except OSError as error:
                self._note("faulted", text=f"clear_history failed: {error.strerror}")
                return
        self._seq += 1
        self._offset = os.fstat(self.fd).st_size
        self._room.open(self.fd, self._offset)
        self._dropped = self._appended
        self._index.restart()
        self.watchers.notify()
        self._wake()

    def _rewrite(self) -> None:
        self.fd = rewrite.without_output(
            self._dir_fd, self.fd, self._magic, self._seq, self._last_ns
        )

    def _finish(self) -> None:
        if self._held:  # no room for all of it yet: stay until there is
            self._retry()
            if self._held:
                time.sleep(_RETRY_S)
                self._queue.put(self._finish)
                return
        self._index.flush()
        point("writer-before-sync")
        try:
            os.ftruncate(self.fd, self._offset)
            os.fdatasync(self.fd)
        except OSError:
            pass  # the frames are written; only their safety against a power cut is not
        self.finished = True
        self._wake()
