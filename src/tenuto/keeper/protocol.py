"""What both ends of the control socket must agree on; clients load this and not the keeper's end."""

from __future__ import annotations

import struct

PROTOCOL = 1
MAX_MESSAGE = 8 * 1024 * 1024
NAME = "control.sock"
READ = 64 * 1024  # at once: a larger buffer is a mapping of its own each time, which takes 20 µs
LENGTH = struct.Struct("<I")


def socket_path(dir_fd: int) -> str:
    """Return a path to the socket that is short enough wherever the folder stands."""
    return f"/proc/self/fd/{dir_fd}/{NAME}"
