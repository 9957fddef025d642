"""One session's agent: asks the model, uses the tools that it calls, until it has its answer."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, cast

from pydantic_ai import messages as m
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from tenuto.core.runs import (
    TRANSIENT,
    Finished,
    PermissionAsked,
    Retried,
    RunEvent,
    Said,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.loop.faults import Broken, explain
from tenuto.runners.loop.files import ToolError
from tenuto.runners.loop.history import History
from tenuto.runners.loop.models import SETTINGS
from tenuto.runners.loop.tools import Tool, check
from tenuto.runners.loop.wire import Items

_WAIT_MOST_S = 30.0
_SHOWN_MOST = 20_000
_REFUSED = (
    "The user did not allow this{why}. Do not try it again as it is: go on without it, or say what "
    "you would need it for."
)


class Agent:
    """A model, its tools and the conversation so far."""

    def __init__(
        self,
        model: Model,
        tools: Sequence[Tool],
        history: History,
        tell: Callable[[RunEvent | Items], None],
        *,
        system: str,
        bypass: bool,
        max_turns: int | None,
        retries: int,
    ) -> None:
        """Take everything that a turn needs; `tell` must not block for long."""
        self._model = model
        self._tools = {tool.name: tool for tool in tools}
        self._history = history
        self._tell = tell
        self._bypass = bypass
        self._max_turns = max_turns
        self._retries = retries
        self._waiting: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self._parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name,
                    parameters_json_schema=tool.schema,
                    description=tool.description,
                    strict=False,
                )
                for tool in tools
            ],
            instruction_parts=[m.InstructionPart(content=system)],
        )
        self._told = len(history.messages)

    def answer(self, request_id: str, allow: bool, why: str) -> None:
        """Let a tool that waits go on, or not; an answer that nobody waits for is dropped."""
        future = self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_result((allow, why))

    async def turn(self, text: str) -> None:
        """Answer a prompt; Finished is told last, whatever happens."""
        self._history.asked(text)
        try:
            self._save()
            end = await self._run()
        except asyncio.CancelledError:
            end = Finished(ok=False, message="interrupted", interrupted=True)
        except Exception as error:
            fault = explain(error)
            end = Finished(ok=False, kind=fault.kind, message=fault.message, status=fault.status)
        self._history.repair()
        try:
            self._save()
        except Broken as error:
            end = Finished(ok=False, kind=error.kind, message=str(error))
        self._tell(end)

    def _save(self) -> None:
        try:
            self._history.save()
        except OSError as error:
            raise Broken("failed", f"the session cannot be kept: {error}") from None

    async def _run(self) -> Finished:
        for number in itertools.count(1):
            response = await self._asked_again()
            self._history.messages.append(response)
            self._save()
            self._tell_items(response)
            if not response.tool_calls:
                _must_be_whole(response)
                return Finished(ok=True, text=response.text or "")
            for call in response.tool_calls:
                await self._use(call)
            if self._max_turns is not None and number >= self._max_turns:
                break
        why = f"it used all of its {self._max_turns} turns without coming to an end"
        return Finished(ok=False, kind="turns", message=why)

    # The model

    async def _asked_again(self) -> m.ModelResponse:
        """Ask the model; what may pass by itself is tried again, as long as nothing was said."""
        for attempt in itertools.count(1):
            said = False

            def say(event: Said) -> None:
                nonlocal said
                said = True
                self._tell(event)

            try:
                return await self._ask(say)
            except Exception as error:
                fault = explain(error)
                if said or attempt > self._retries or fault.kind not in TRANSIENT:
                    raise
                after = fault.retry_after
                wait = min(0.5 * 2 ** (attempt - 1) if after is None else after, _WAIT_MOST_S)
                text = f"{fault.kind}: {fault.message[:300]}; again in {wait:g} s"
                self._tell(Retried(text, fault.status))
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _ask(self, say: Callable[[Said], None]) -> m.ModelResponse:
        """Send the conversation and tell what comes, piece by piece."""
        request = model_request_stream(
            self._model,
            self._history.messages,
            model_settings=SETTINGS,
            model_request_parameters=self._parameters,
        )
        async with request as stream:
            try:
                async for event in stream:
                    piece = _said(event)
                    if piece is not None:
                        say(piece)
            except BaseException:
                partial = stream.get()
                self._tell_used(partial)  # what was cut was paid for all the same
                self._history.cut(partial)
                raise
            response = stream.get()
        self._tell_used(response)
        given = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if not given or response.state != "complete":
            self._history.cut(response)
            raise Broken("network", "the stream ended before the answer did")
        return response

    def _tell_used(self, response: m.ModelResponse) -> None:
        usage = response.usage
        if not (usage.input_tokens or usage.output_tokens):
            return
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        self._tell(
            Used(
                model=response.model_name or self._model.model_name,
                input=max(usage.input_tokens - read - written, 0),
                output=usage.output_tokens,
                cache_read=read,
                cache_write=written,
                cost=_cost(response),
            )
        )

    def _tell_items(self, response: m.ModelResponse) -> None:
        """Put what is new since the last request on the tape."""
        fresh = self._history.messages[min(self._told, len(self._history.messages) - 1) :]
        self._told = len(self._history.messages)
        items: list[Any] = m.ModelMessagesTypeAdapter.dump_python(list(fresh), mode="json")
        usage = {name: value for name, value in items[-1]["usage"].items() if value}
        self._tell(Items(response.model_name or self._model.model_name, usage, items))

    # The tools

    async def _use(self, call: m.ToolCallPart) -> None:
        """Use a tool and put its result into the conversation; failing is a result too."""
        arguments = _arguments(call)
        self._tell(ToolBegan(call.tool_call_id, call.tool_name, arguments))
        outcome = "success"
        try:
            tool = self._tools.get(call.tool_name)
            if tool is None:
                known = ", ".join(self._tools)
                raise ToolError(f"there is no tool {call.tool_name}; there are {known}")
            if isinstance(arguments, str):
                raise ToolError("the arguments are not a JSON object")
            checked = check(tool, arguments)
            refusal = await self._refused(tool, checked)
            if refusal:
                outcome, text = "denied", refusal
            else:
                text = await tool.run(checked)
        except ToolError as error:
            outcome, text = "failed", str(error)
        except asyncio.CancelledError:
            self._tell(ToolEnded(call.tool_call_id, False, "interrupted"))
            raise
        except Exception as error:
            outcome, text = "failed", f"{type(error).__name__}: {error}"
        self._history.returned(call, text, outcome)
        self._save()
        shown = text if len(text) <= _SHOWN_MOST else text[:_SHOWN_MOST] + " …"
        self._tell(ToolEnded(call.tool_call_id, outcome == "success", shown))

    async def _refused(self, tool: Tool, arguments: dict[str, Any]) -> str:
        """Return what to say to the model if the user does not allow it."""
        if self._bypass or not tool.asks:
            return ""
        request_id = uuid.uuid4().hex
        future: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            self._tell(PermissionAsked(request_id, tool.name, arguments, _detail(arguments)))
            allow, why = await future
        finally:
            del self._waiting[request_id]
        return "" if allow else _REFUSED.format(why=f": {why}" if why else "")


def _said(event: m.ModelResponseStreamEvent) -> Said | None:
    if isinstance(event, m.PartStartEvent):
        part = event.part
        if isinstance(part, m.TextPart | m.ThinkingPart) and part.content:
            return Said(part.content, thought=isinstance(part, m.ThinkingPart))
    elif isinstance(event, m.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, m.TextPartDelta | m.ThinkingPartDelta) and delta.content_delta:
            return Said(delta.content_delta, thought=isinstance(delta, m.ThinkingPartDelta))
    return None


def _must_be_whole(response: m.ModelResponse) -> None:
    """Refuse to take a cut answer for one."""
    if response.finish_reason == "length":
        raise Broken("failed", "the answer was cut at the most that the model may say at once")
    if response.finish_reason == "content_filter":
        raise Broken("failed", "the provider's filter withheld the answer")
    if response.finish_reason == "error":
        raise Broken("protocol", "the model ended its answer with an error")


def _arguments(call: m.ToolCallPart) -> dict[str, Any] | str:
    """Return a call's arguments, or the text that they should have been read from."""
    try:
        return call.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return call.args_as_json_str()


def _cost(response: m.ModelResponse) -> Decimal | None:
    try:
        return response.cost().total_price
    except Exception:  # a model without a price, however it is said
        return None


def _detail(arguments: dict[str, Any]) -> str:
    for name in ("path", "command", "code"):
        given: Any = arguments.get(name)
        if isinstance(given, list):
            given = " ".join(map(str, cast("list[Any]", given)))
        if isinstance(given, str):
            return given[:500]
    return ""
