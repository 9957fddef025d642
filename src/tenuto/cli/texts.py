"""Text that the user names: a file, or `-` for what stands on stdin."""

from __future__ import annotations

from tenuto.core.errors import InvalidInput


def read_text(path: str) -> str:
    """Return what is in a file, or on stdin for `-`."""
    if path == "-":
        return read_stdin()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text", "save it as UTF-8") from None


def read_stdin() -> str:
    """Return everything on stdin."""
    import sys

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidInput("what stands on stdin is not UTF-8 text", "pass UTF-8") from None
