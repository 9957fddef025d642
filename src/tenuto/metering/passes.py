"""Tokens that say whose a request is, made with a secret of the project and checked without a list."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from contextlib import suppress

from tenuto.core.errors import EngineFault
from tenuto.core.ids import is_id

_MAC = 32
_SECRET = 32
_TOKEN = re.compile(r"tenuto-([0-9a-f-]{36})-([A-Za-z0-9._-]{0,64})-([0-9a-f]{32})")


def secret_of(home: str) -> bytes:
    """Return the project's secret, made at first use and readable by its user only."""
    folder = os.path.join(home, "gateway")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o700)
    path = os.path.join(folder, "key")
    for _ in range(2):
        with suppress(FileNotFoundError), open(path, "rb") as file:
            found = file.read().strip()
            if len(found) >= _SECRET:
                return found
            raise EngineFault(f"{path} holds no secret", "remove that file")
        fresh = f"{path}.{secrets.token_hex(4)}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(secrets.token_hex(_SECRET).encode() + b"\n")
        try:
            with suppress(FileExistsError):
                os.link(fresh, path)  # whoever is first wins; nobody reads half a secret
        finally:
            os.unlink(fresh)
    raise EngineFault(f"{path} cannot be read", "check the folder's rights")


def token(secret: bytes, execution: str, step: str) -> str:
    """Return the token of an execution's step."""
    return f"tenuto-{execution}-{step}-{_mac(secret, f'{execution}/{step}')}"


def read(secret: bytes, text: str) -> tuple[str, str] | None:
    """Return whose token this is: execution and step; None if it is none of ours."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        return None
    execution, step, mac = found.groups()
    if not is_id(execution) or not proves(secret, f"{execution}/{step}", mac):
        return None
    return execution, step


def proof(secret: bytes, word: str) -> str:
    """Return what shows that one knows the secret, without showing it."""
    return _mac(secret, word)


def proves(secret: bytes, word: str, mac: str) -> bool:
    """Tell whether this is the proof for a word."""
    return hmac.compare_digest(_mac(secret, word).encode(), mac.encode("utf-8", "replace"))


def _mac(secret: bytes, word: str) -> str:
    return hmac.new(secret, word.encode(), "sha256").hexdigest()[:_MAC]
