"""Keeping secrets out of what is shown and exported: known values and well-known shapes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_NAMES = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PRIVATE|AUTH|COOKIE)(_|$)", re.I
)
_SHAPES = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
)
_SHORTEST = 8


class Redactor:
    """Replaces secrets in text; made once per environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Learn the values of variables whose names say that they are secret."""
        known = {
            value: name
            for name, value in environ.items()
            if len(value) >= _SHORTEST and _NAMES.search(name) and not _is_path(value)
        }
        self._known = sorted(known.items(), key=lambda item: -len(item[0]))

    def text(self, text: str) -> str:
        """Return the text with every known secret replaced by its name."""
        for value, name in self._known:
            if value in text:
                text = text.replace(value, f"[redacted {name}]")
        return _SHAPES.sub("[redacted]", text)

    def data(self, data: object) -> object:
        """Return the same for every text inside a JSON-like value."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {key: self.data(value) for key, value in data.items()}  # pyright: ignore
        if isinstance(data, (list, tuple)):
            return [self.data(value) for value in data]  # pyright: ignore
        return data


def _is_path(value: str) -> bool:
    """Tell the path of a socket or a key file, which is no secret, from a key that begins so."""
    try:
        return value.startswith("/") and os.path.exists(value)
    except ValueError:
        return False
