"""Which provider a model's name means, and where its key and address come from. Loads no provider."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Endpoint

Api = Literal["anthropic", "openai", "openai-chat", "google", "compatible"]

_APIS: dict[str, Api] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "openai-responses": "openai",
    "openai-chat": "openai-chat",
    "google": "google",
    "gemini": "google",
    "ollama": "compatible",
    "vllm": "compatible",
    "compatible": "compatible",
}
_BARE: tuple[tuple[str, str], ...] = (
    (r"claude-", "anthropic"),
    (r"gpt-|chatgpt-|codex-|o\d", "openai"),
    (r"gemini-|gemma-", "google"),
)
_ALIASES = {
    "opus": "claude-opus-5-5",
    "sonnet": "claude-sonnet-5-5",
    "haiku": "claude-haiku-5-5",
}
_DEFAULTS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-5.5",
    "google": "gemini-flash-latest",
}
KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}
"""Where a provider's key is looked for, in this order."""
ADDRESSES: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_BASE_URL",),
    "openai": ("OPENAI_BASE_URL",),
    "google": ("GOOGLE_GEMINI_BASE_URL",),
    "ollama": ("OLLAMA_BASE_URL",),
    "vllm": ("VLLM_BASE_URL", "OPENAI_BASE_URL"),
    "compatible": ("OPENAI_BASE_URL",),
}
"""Variables that hold an address of one's own, by the prefix that uses them."""
SECRETS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY"),
    *("GOOGLE_API_KEY", "GEMINI_API_KEY", "OLLAMA_API_KEY"),
)
"""What a loop behind a gateway must not be given."""
_HOMES = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "google": "",  # its library knows
}
_BELOW: dict[Api, str] = {
    "anthropic": "/anthropic",
    "openai": "/openai/v1",
    "openai-chat": "/openai/v1",
    "compatible": "/openai/v1",
    "google": "/google",
}


class Chosen(msgspec.Struct, frozen=True):
    """A model as it is asked for: by which protocol, where, and with which key."""

    api: Api
    prefix: str
    model: str
    url: str
    key: str


def choose(name: str, environ: Mapping[str, str], endpoint: Endpoint | None = None) -> Chosen:
    """Return what a name means here; raises RunnerFailed if it means nothing, or a key is missing."""
    prefix, model = _split(name or _default(environ, endpoint))
    api = _APIS[prefix]
    if endpoint is not None:
        return Chosen(api, prefix, model, endpoint.url.rstrip("/") + _BELOW[api], endpoint.token)
    own = next((environ[one] for one in ADDRESSES[_address(prefix)] if environ.get(one)), "")
    if api == "compatible":
        if not own:
            wanted = " or ".join(ADDRESSES[prefix])
            raise RunnerFailed(
                f"no address for {name!r}: {wanted} is not set",
                f"set it to the server's OpenAI-compatible address, such as "
                f"{wanted.split()[0]}=http://127.0.0.1:11434/v1",
                kind="auth",
            )
        return Chosen(api, prefix, model, own, environ.get("OLLAMA_API_KEY", ""))
    provider = _address(prefix)
    key = next((environ[one] for one in KEYS[provider] if environ.get(one)), "")
    if not key and not (own and provider == "openai"):  # servers of one's own often need none
        wanted = " or ".join(KEYS[provider])
        raise RunnerFailed(f"no key for {name or model!r}", f"set {wanted}", kind="auth")
    return Chosen(api, prefix, model, own or _HOMES[provider], key)


def _address(prefix: str) -> str:
    api = _APIS[prefix]
    return prefix if api == "compatible" else "openai" if api == "openai-chat" else api


def _split(name: str) -> tuple[str, str]:
    name = _ALIASES.get(name, name)
    prefix, colon, model = name.partition(":")
    if colon and model and prefix in _APIS:
        return prefix, _ALIASES.get(model, model)
    if not colon:
        for beginning, provider in _BARE:
            if re.match(beginning, name):
                return provider, name
    known = ", ".join(f"{one}:" for one in _APIS)
    raise RunnerFailed(
        f"no provider is known for the model {name!r}",
        f"begin its name with one of {known} or use an id that begins with claude-, gpt- or gemini-",
        kind="bad_request",
    )


def _default(environ: Mapping[str, str], endpoint: Endpoint | None) -> str:
    if named := environ.get("TENUTO_LOOP_MODEL"):
        return named
    for provider, names in KEYS.items():
        if any(environ.get(one) for one in names):
            return f"{provider}:{_DEFAULTS[provider]}"
    if endpoint is not None:  # it holds the keys, and does not say which
        return f"anthropic:{_DEFAULTS['anthropic']}"
    raise RunnerFailed(
        "no model was named, and no key is set that would suggest one",
        "name a model, or set " + ", ".join(one for names in KEYS.values() for one in names),
        kind="auth",
    )
