"""Text that the user names: a file, or `-` for what stands on stdin."""

from __future__ import annotations

from tenuto.core.errors import InvalidInput

_MOST = 64 * 1024 * 1024


def read_text(path: str) -> str:
    """Return what is in a file, or on stdin for `-`."""
    if path == "-":
        return read_stdin()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST + 1)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    _check_size(path, len(text))
    return text


def read_stdin() -> str:
    """Return everything on stdin."""
    import sys

    data = sys.stdin.buffer.read(_MOST + 1)
    _check_size("what stands on stdin", len(data))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput("what stands on stdin is not UTF-8 text", "pass UTF-8") from None


def _check_size(name: str, size: int) -> None:
    """Raise InvalidInput for more than could ever be recorded."""
    if size > _MOST:
        raise InvalidInput(f"{name} is larger than {_MOST >> 20} MiB", "name a smaller one")
