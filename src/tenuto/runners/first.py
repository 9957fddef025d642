"""The first start of an agent that makes its home then: one at a time, whoever starts it.

Some make a database and trip over each other's. Whoever is the first holds a lock on the folder until
its agent has answered; the others wait for that, in this process and in all others of this user. The
kernel gives the lock back when its holder dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

_PAUSE_S = 0.02


@asynccontextmanager
async def in_turn(folder: str, fresh: Callable[[], bool]) -> AsyncGenerator[None]:
    """Start an agent inside of this: alone where its home is still `fresh`, at once elsewhere.

    The folder is what it keeps its data in; an empty name is of an agent that needs none of this.
    """
    lock = await _taken(folder, fresh) if folder else None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


async def _taken(folder: str, fresh: Callable[[], bool]) -> int | None:
    """Return the lock if this is the first start; None once there was one."""
    is_first = fresh()
    try:
        if is_first:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # the agent itself says best what is wrong there
    try:
        while not _locked(lock, fcntl.LOCK_EX if is_first else fcntl.LOCK_SH):
            await asyncio.sleep(_PAUSE_S)  # a wait in a thread could not be given up
        if is_first and fresh():
            return lock
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
