"""`python -m tenuto.runners.loop`: commands on stdin, events on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable

_LINE_MOST = 64 * 1024 * 1024


def _take_stdout() -> int:
    """Keep stdout for our lines; whatever a library prints goes to stderr."""
    fd = os.dup(1)
    os.set_inheritable(fd, False)
    os.dup2(2, 1)
    return fd


def _writer(fd: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:  # shared with a stdin that does not block
                select.select([], [fd], [])

    return write


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=_LINE_MOST)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    while line := await reader.readline():
        yield line


async def _main(fd: int) -> None:
    from tenuto.runners.loop.process import Process

    await Process(_writer(fd), os.environ).serve(_lines())


def main() -> None:
    """Serve one session."""
    fd = _take_stdout()
    try:
        asyncio.run(_main(fd))
    except BrokenPipeError:
        pass  # the driver is gone; nobody is left to tell
    sys.stderr.flush()
    os._exit(0)  # everything is closed; taking down the libraries would cost half a second


if __name__ == "__main__":
    main()
