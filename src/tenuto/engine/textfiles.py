"""Reading files that somebody else put there: never more than asked for, never a pipe or a device."""

from __future__ import annotations

import os
import stat

from tenuto.core.errors import InvalidInput


def read_beginning(path: str, most: int, hint: str = "") -> tuple[bytes, int]:
    """Return at most so many bytes of a regular file, and its whole size; links are not followed.

    Raises InvalidInput, naming the file, if that cannot be.
    """
    try:
        # does not wait for the other end of a pipe
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", hint) from None
    try:
        told = os.fstat(file)
        if not stat.S_ISREG(told.st_mode):
            what = "a folder" if stat.S_ISDIR(told.st_mode) else "no regular file"
            raise InvalidInput(f"cannot read {path}: it is {what}", hint)
        data = bytearray()
        while len(data) < most and (piece := os.read(file, min(1 << 20, most - len(data)))):
            data += piece
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", hint) from None
    finally:
        os.close(file)
    return bytes(data), max(told.st_size, len(data))
