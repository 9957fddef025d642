"""Idempotency keys: the same key starts the same work once, whoever asks, also after a restart.

A key is a file, named by its hash, that holds the execution's id. The id is written before the work
starts and the file is locked meanwhile: a second caller waits and finds it; after a crash in between,
the id is unknown to the engine, and the work starts then.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from tenuto.core.errors import InvalidInput
from tenuto.core.ids import is_id

_PAUSE_S = 0.02


class Keyed:
    """A key that is held: the execution it stands for, and the means to name one."""

    def __init__(self, fd: int, mark: str) -> None:
        """Take the locked file and a mark of what is asked."""
        self._fd = fd
        self._mark = mark
        words = os.pread(fd, 4096, 0).decode("ascii", "replace").split()
        whole = len(words) == 2 and is_id(words[0])
        self.execution_id = words[0] if whole else ""
        if whole and words[1] != mark:
            raise InvalidInput(
                "this idempotencyKey was used for other work",
                "use a new key, or repeat the very same arguments",
            )

    def name(self, execution_id: str) -> None:
        """Say which execution the key stands for, before it starts."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{execution_id} {self._mark}\n".encode(), 0)
        os.fdatasync(self._fd)


@asynccontextmanager
async def hold(folder: str, key: str, work: str) -> AsyncGenerator[Keyed]:
    """Hold a key while its work is started; `work` is what is asked, in a form that compares."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    path = os.path.join(folder, _hash(key))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_PAUSE_S)
        yield Keyed(fd, _hash(work))
    finally:
        os.close(fd)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
