"""The model that was chosen, with its library loaded: only the one that is needed."""

from __future__ import annotations

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from tenuto.runners.loop.naming import Chosen

_CONNECT_S = 30.0
_SILENCE_S = 1800.0
"""A provider that says nothing at all for so long is gone; the driver is told so. A gateway may hold
a request until a person has decided, so it may be silent for ever."""

SETTINGS = ModelSettings(max_retries=0, cache=True)
"""The libraries try nothing again by themselves: the loop does, and tells of it."""


class Connected:
    """A model and the connections to it."""

    def __init__(self, chosen: Chosen, local: bool) -> None:
        """Load the library of the provider; `local` for a gateway, which no proxy may be asked for."""
        silence = None if local else _SILENCE_S
        timeout = httpx2.Timeout(silence, connect=_CONNECT_S)
        self._http = httpx2.AsyncClient(timeout=timeout, trust_env=not local)
        self.model = _model(chosen, self._http, silence)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _model(chosen: Chosen, http: httpx2.AsyncClient, silence: float | None) -> Model:
    if chosen.api == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(api_key=chosen.key, base_url=chosen.url, http_client=http)
        return AnthropicModel(chosen.model, provider=provider)
    if chosen.api == "google":
        from google.genai import Client
        from google.genai.types import HttpOptions
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        options = HttpOptions(
            base_url=chosen.url or None,
            httpx_async_client=http,
            timeout=None if silence is None else int(silence * 1000),
        )
        client = Client(vertexai=False, api_key=chosen.key, http_options=options)
        return GoogleModel(chosen.model, provider=GoogleProvider(client=client))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    if chosen.api == "compatible":
        compatible = OpenAICompatibleProvider(
            chosen.prefix, base_url=chosen.url, api_key=chosen.key or None, http_client=http
        )
        return OpenAIChatModel(chosen.model, provider=compatible, profile=whole)
    openai = OpenAIProvider(
        base_url=chosen.url, api_key=chosen.key or "none-needed", http_client=http
    )
    if chosen.api == "openai-chat":
        return OpenAIChatModel(chosen.model, provider=openai, profile=whole)
    assert openai.client.responses  # loaded now: at the first request it would hold up an interrupt
    return OpenAIResponsesModel(chosen.model, provider=openai)
