"""A whole agent loop in each dialect: what the libraries send back is read as what it was."""

from __future__ import annotations

from typing import Any

import pytest
from sdk_help import SDKS

from tenuto.testing.models import Call, Fail, Model, Say

pytestmark = pytest.mark.asyncio


def spoken_to(name: str, url: str) -> Any:
    """Return a model of pydantic-ai's that speaks a dialect to us."""
    if name == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel("m", provider=AnthropicProvider(api_key="x", base_url=url))
    if name == "google":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        return GoogleModel("m", provider=GoogleProvider(api_key="x", base_url=url))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if name == "openai-chat" else OpenAIResponsesModel
    return kind("m", provider=OpenAIProvider(api_key="x", base_url=url + "/v1"))


@pytest.mark.parametrize("name", sorted(SDKS))
@pytest.mark.parametrize("stream", [True, False])
async def test_tools_are_called_and_their_results_shown(model: Model, name: str, stream: bool):
    from pydantic_ai import Agent

    agent = Agent(spoken_to(name, model.url), instructions="You are a developer.")

    @agent.tool_plain
    def read_file(path: str) -> str:
        """Read a file."""
        return f"what is in {path}"

    model.when(
        lambda seen: "a developer" in seen.text,
        Say("Both at once.", Call("read_file", path="a"), Call("read_file", path="b")),
        lambda seen: Call("read_file", path="c" + seen.last[-1]),
        "Done.",
    )

    async def watch(_context: Any, events: Any) -> None:
        async for _ in events:
            pass

    async with agent:  # and its connections are closed
        result = await agent.run("Do it.", event_stream_handler=watch if stream else None)
    assert result.output == "Done." and not model.errors
    assert model.results == ["what is in a", "what is in b", "what is in cb"]
    assert [(one.spoken, one.stream) for one in model.seen] == [(n, stream) for n in range(3)]
    usage, billed = result.usage, model.billed()
    assert (usage.input_tokens, usage.output_tokens) == (billed.input, billed.output)
    assert usage.requests == len(model.bill) == 3 and all(one.complete for one in model.bill)


@pytest.mark.parametrize("name", sorted(SDKS))
async def test_a_failure_reaches_the_agent_with_its_status(model: Model, name: str):
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import ModelHTTPError

    model.play(Fail(400, "no such thing"), "Done.", bare=True)
    agent = Agent(spoken_to(name, model.url))
    async with agent:
        with pytest.raises(ModelHTTPError) as failed:
            await agent.run("Do it.")
        assert failed.value.status_code == 400 and model.bill == []
        assert (await agent.run("Do it.")).output == "Done."
