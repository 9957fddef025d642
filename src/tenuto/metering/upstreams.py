"""Where requests go on to, and the keys they need there: from the gateway's own environment only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

PROVIDERS = ("anthropic", "openai", "google")
DEFAULTS = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "google": "https://generativelanguage.googleapis.com",
}
KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
"""The variables that hold a provider's key, the first that is set first."""
URLS = {
    "anthropic": ("TENUTO_UPSTREAM_ANTHROPIC", "ANTHROPIC_BASE_URL"),
    "openai": ("TENUTO_UPSTREAM_OPENAI", "OPENAI_BASE_URL"),
    "google": ("TENUTO_UPSTREAM_GOOGLE", "GOOGLE_GEMINI_BASE_URL"),
}
KEY_NAMES: tuple[str, ...] = tuple(name for names in KEYS.values() for name in names)
"""The variables whose keys a gateway has."""
WITHHELD: tuple[str, ...] = (
    *KEY_NAMES, "CODEX_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "OLLAMA_API_KEY",
)  # fmt: skip
"""What a runtime behind the gateway, and whatever it starts, must not have: of any provider."""


class Upstream(msgspec.Struct, frozen=True):
    """One provider's API: its base, and the header that says who pays."""

    url: str
    header: str = ""
    value: str = msgspec.field(default="")
    default: bool = True
    """It is the provider's own, which answers nobody without a key."""

    def __repr__(self) -> str:
        return f"Upstream({self.url!r}, key={'set' if self.value else 'none'})"


def from_environ(environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Return the providers' upstreams as an environment has them."""
    found: dict[str, Upstream] = {}
    for provider in PROVIDERS:
        url = _first(environ, URLS[provider])[1] or DEFAULTS[provider]
        name, key = _first(environ, KEYS[provider])
        header, value = "", ""
        if key:
            header, value = _as_header(provider, name, key)
        url = url.rstrip("/")
        found[provider] = Upstream(url, header, value, url == DEFAULTS[provider])
    return found


def fingerprint(upstreams: Mapping[str, Upstream]) -> str:
    """Return what tells gateways apart: another key or another upstream is another gateway."""
    digest = hashlib.sha256()
    for provider in PROVIDERS:
        one = upstreams[provider]
        for word in (provider, one.url, one.header, one.value):
            digest.update(word.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()[:16]


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environ[name]) for name in names if environ.get(name)), ("", ""))


def _as_header(provider: str, name: str, key: str) -> tuple[str, str]:
    if provider == "google":
        return "x-goog-api-key", key
    if provider == "anthropic" and name == "ANTHROPIC_API_KEY":
        return "x-api-key", key
    return "authorization", f"Bearer {key}"
