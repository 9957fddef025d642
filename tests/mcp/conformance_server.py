"""The fixtures that the conformance suites ask for by name, on our server class. For tests only."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError

from tenuto.core.quantities import iso
from tenuto.mcp.server import Request, build
from tenuto.mcp.tasks import NoTask, require_capability

IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5"
    "ErkJggg=="
)
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
Fixture = Callable[[dict[str, Any], Request], Awaitable[dict[str, Any]]]
TOOLS: dict[str, tuple[dict[str, Any], Fixture]] = {}
bus = InMemorySubscriptionBus()


def tool(schema: dict[str, Any] | None = None) -> Callable[[Fixture], Fixture]:
    def register(function: Fixture) -> Fixture:
        TOOLS[function.__name__] = (schema or OBJECT, function)
        return function

    return register


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


def text_tool(name: str, *content: dict[str, Any]) -> None:
    async def answer(given: dict[str, Any], request: Request) -> dict[str, Any]:
        return {"content": list(content)}

    TOOLS[name] = (OBJECT, answer)


def embedded(uri: str, mime: str, text: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}}


_PICTURE = {"type": "image", "data": IMAGE, "mimeType": "image/png"}
text_tool(
    "test_simple_text", {"type": "text", "text": "This is a simple text response for testing."}
)
text_tool("test_image_content", _PICTURE)
text_tool("test_audio_content", {"type": "audio", "data": AUDIO, "mimeType": "audio/wav"})
text_tool(
    "test_embedded_resource",
    embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."),
)
text_tool(
    "test_multiple_content_types",
    {"type": "text", "text": "Multiple content types test:"},
    _PICTURE,
    embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
)


async def log(request: Request, text: str) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        await request.ctx.session.send_log_message(
            "info", text, related_request_id=request.ctx.request_id
        )


@tool()
async def test_tool_with_logging(given: dict[str, Any], request: Request) -> dict[str, Any]:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(request, text)
        await asyncio.sleep(0.05)
    return says("Tool with logging executed successfully")


@tool()
async def test_tool_with_progress(given: dict[str, Any], request: Request) -> dict[str, Any]:
    for step in (0, 50, 100):
        await request.ctx.session.report_progress(step, 100, f"Completed step {step} of 100")
        await asyncio.sleep(0.05)
    return says(str((request.ctx.meta or {}).get("progress_token", 0)))


@tool({"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]})
async def test_sampling(given: dict[str, Any], request: Request) -> dict[str, Any]:
    message = types.SamplingMessage(
        role="user", content=types.TextContent(type="text", text=given["prompt"])
    )
    try:
        answer = await request.ctx.session.create_message(  # pyright: ignore
            messages=[message], max_tokens=100, related_request_id=request.ctx.request_id
        )
        return says(f"LLM response: {getattr(answer.content, 'text', '')}")
    except Exception as error:
        return says(f"Sampling not supported or error: {error}")


async def elicited(request: Request, message: str, schema: dict[str, Any], word: str) -> Any:
    try:
        answer = await request.ctx.session.elicit_form(
            message, schema, related_request_id=request.ctx.request_id
        )
        content = json.dumps(answer.content or {})
        return says(f"{word}: action={answer.action}, content={content}")
    except Exception as error:
        return says(f"Elicitation not supported or error: {error}")


@tool({"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]})
async def test_elicitation(given: dict[str, Any], request: Request) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"response": {"type": "string"}},
              "required": ["response"]}  # fmt: skip
    return await elicited(request, given["message"], schema, "User response")


@tool()
async def test_elicitation_sep1034_defaults(given: dict[str, Any], request: Request) -> Any:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {
                "type": "string", "enum": ["active", "inactive", "pending"], "default": "active",
            },
            "verified": {"type": "boolean", "default": True},
        },
    }  # fmt: skip
    return await elicited(request, "Please provide user information", schema, "Elicitation result")


@tool()
async def test_elicitation_sep1330_enums(given: dict[str, Any], request: Request) -> Any:
    plain = ["active", "inactive", "pending"]
    levels = [("low", "Low Priority"), ("medium", "Medium Priority"), ("high", "High Priority")]
    kinds = [("feature", "New Feature"), ("bug", "Bug Fix"), ("docs", "Documentation")]
    titled = [{"const": const, "title": title} for const, title in levels]
    several = [{"const": const, "title": title} for const, title in kinds]
    schema = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "untitledMulti": {
                "type": "array", "items": {"type": "string", "enum": ["read", "write", "execute"]},
            },
            "titledMulti": {"type": "array", "items": {"anyOf": several}},
            "legacyEnum": {
                "type": "string", "enum": ["small", "medium", "large"],
                "enumNames": ["Small Size", "Medium Size", "Large Size"],
            },
        },
    }  # fmt: skip
    return await elicited(request, "Please select values", schema, "Elicitation completed")


@tool()
async def test_error_handling(given: dict[str, Any], request: Request) -> dict[str, Any]:
    return says("This tool intentionally returns an error for testing", isError=True)


@tool({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})
async def test_x_mcp_header(given: dict[str, Any], request: Request) -> dict[str, Any]:
    return says(f"region={given.get('region')}")


@tool()
async def test_missing_capability(given: dict[str, Any], request: Request) -> dict[str, Any]:
    declared = request.ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        raise MCPError(-32021, "sampling is needed", {"requiredCapabilities": {"sampling": {}}})
    return says("Client declared sampling capability; proceeding.")


# Several round trips


def asks(requests: dict[str, Any], state: str | None = None) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": state}


def name_request(message: str = "What is your name?", schema: Any = NAME) -> dict[str, Any]:
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling_request(text: str) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 99}}


def answers(request: Request) -> dict[str, Any]:
    return (request.ctx.params or {}).get("inputResponses") or {}


def state_of(request: Request) -> str | None:
    return (request.ctx.params or {}).get("requestState")


@tool()
async def test_input_required_result_elicitation(given: dict[str, Any], request: Request) -> Any:
    if "user_name" in answers(request):
        return says(f"Hello, {answers(request)['user_name']['content']['name']}!")
    return asks({"user_name": name_request()})


@tool()
async def test_input_required_result_sampling(given: dict[str, Any], request: Request) -> Any:
    if "capital_question" in answers(request):
        return says(f"Model said: {answers(request)['capital_question']['content']['text']}")
    return asks({"capital_question": sampling_request("What is the capital of France?")})


@tool()
async def test_input_required_result_list_roots(given: dict[str, Any], request: Request) -> Any:
    if "client_roots" in answers(request):
        return says(f"Client exposed {len(answers(request)['client_roots']['roots'])} root(s).")
    return asks({"client_roots": {"method": "roots/list"}})


@tool()
async def test_input_required_result_request_state(given: dict[str, Any], request: Request) -> Any:
    if "confirm" in answers(request) and state_of(request) == "nonce":
        return says("state-ok: confirmation received")
    return asks({"confirm": name_request("Please confirm")}, "nonce")


@tool()
async def test_input_required_result_multiple_inputs(
    given: dict[str, Any], request: Request
) -> Any:
    if {"user_name", "greeting", "client_roots"} <= answers(request).keys():
        return says("All inputs received.")
    return asks(
        {"user_name": name_request(), "greeting": sampling_request("Generate a greeting"),
         "client_roots": {"method": "roots/list"}},
        "multiple",
    )  # fmt: skip


@tool()
async def test_input_required_result_multi_round(given: dict[str, Any], request: Request) -> Any:
    state = json.loads(state_of(request) or '{"round": 0}')
    got = answers(request)
    if state["round"] == 1 and "step1" in got:
        again = json.dumps({"round": 2, "name": got["step1"]["content"].get("name")})
        return asks({"step2": name_request("Step 2: What is your favorite color?")}, again)
    if state["round"] == 2 and "step2" in got:
        return says(f"{state['name']} likes {got['step2']['content']}.")
    return asks({"step1": name_request("Step 1: What is your name?")}, json.dumps({"round": 1}))


@tool()
async def test_input_required_result_tampered_state(given: dict[str, Any], request: Request) -> Any:
    if state_of(request) is None:
        return asks({"confirm": name_request("Please confirm")}, "round-1")
    return says(f"state-ok: {state_of(request)}")


@tool()
async def test_input_required_result_capabilities(given: dict[str, Any], request: Request) -> Any:
    declared = request.ctx.session.client_capabilities
    requests = {}
    if declared is None or declared.sampling is not None:
        requests["sample"] = sampling_request("Say hello")
    if declared is None or declared.elicitation is not None:
        requests["ask"] = name_request()
    return asks(requests, "gated")


@tool()
async def test_streaming_elicitation(given: dict[str, Any], request: Request) -> Any:
    return asks({"user_name": name_request()})


@tool()
async def test_logging_tool(given: dict[str, Any], request: Request) -> dict[str, Any]:
    await log(request, "logged")
    return says("Logged, for those who asked for it.")


_ADDRESS = {"street": {"type": "string"}, "city": {"type": "string"}}


@tool(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": _ADDRESS}},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(given: dict[str, Any], request: Request) -> dict[str, Any]:
    return says("json_schema_2020_12_tool")


@tool()
async def test_reconnection(given: dict[str, Any], request: Request) -> dict[str, Any]:
    await log(request, "Before disconnect")
    if request.ctx.close_sse_stream is not None:
        await request.ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    await log(request, "After reconnect")
    return says("Reconnection test completed")


@tool()
async def test_trigger_tool_change(given: dict[str, Any], request: Request) -> dict[str, Any]:
    await bus.publish(ToolsListChanged())
    return says("tool list changed")


@tool()
async def test_trigger_prompt_change(given: dict[str, Any], request: Request) -> dict[str, Any]:
    await bus.publish(PromptsListChanged())
    return says("prompt list changed")


# Tasks


class Job:
    """A task of the fixture: a coroutine that may ask questions."""

    def __init__(self, work: Callable[[Job], Awaitable[dict[str, Any]]]) -> None:
        self.id = str(uuid.uuid4())
        self.made = self.moved = iso(__import__("time").time_ns())
        self.status = "working"
        self.end: dict[str, Any] = {}
        self.questions: dict[str, asyncio.Future[Any]] = {}
        self.task = asyncio.create_task(self._run(work))

    async def _run(self, work: Callable[[Job], Awaitable[dict[str, Any]]]) -> None:
        try:
            self.end = {"result": await work(self)}
            self.status = "completed"
        except MCPError as error:
            self.end = {"error": {"code": error.error.code, "message": error.error.message}}
            self.status = "failed"
        except asyncio.CancelledError:
            self.status = "cancelled"

    async def ask(self, key: str) -> Any:
        self.questions[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.questions[key]
        finally:
            del self.questions[key]

    def seen(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "taskId": self.id, "status": self.status, "createdAt": self.made,
            "lastUpdatedAt": self.moved, "ttlMs": 60000, "pollIntervalMs": 200, **self.end,
        }  # fmt: skip
        open_ones = {key: name_request(f"{key}?") for key in self.questions}
        if self.status == "working" and open_ones:
            shown |= {"status": "input_required", "inputRequests": open_ones}
        return shown


class Book:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def begin(self, work: Callable[[Job], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        job = Job(work)
        self.jobs[job.id] = job
        return {"resultType": "task", **job.seen()}

    def _job(self, task_id: str) -> Job:
        if task_id not in self.jobs:
            raise NoTask
        return self.jobs[task_id]

    async def get(self, task_id: str, can_be_asked: bool) -> dict[str, Any]:
        return self._job(task_id).seen()

    async def update(self, task_id: str, responses: dict[str, Any]) -> None:
        job = self._job(task_id)
        for key, answer in responses.items():
            if key in job.questions and not job.questions[key].done():
                job.questions[key].set_result(answer)
        await asyncio.sleep(0)

    async def cancel(self, task_id: str) -> None:
        self._job(task_id).task.cancel()
        await asyncio.sleep(0)


book = Book()


@tool(NAME)
async def greet(given: dict[str, Any], request: Request) -> dict[str, Any]:
    return says(f"Hello, {given['name']}!")


@tool({"type": "object", "properties": {"seconds": {"type": "number"}}})
async def slow_compute(given: dict[str, Any], request: Request) -> dict[str, Any]:
    async def work(job: Job | None = None) -> dict[str, Any]:
        await asyncio.sleep(given.get("seconds", 1))
        return says("computed")

    if request.takes_tasks and given.get("seconds", 1) > 0:
        return book.begin(work)
    return await work()


@tool()
async def failing_job(given: dict[str, Any], request: Request) -> dict[str, Any]:
    require_capability(request.ctx)

    async def work(job: Job) -> dict[str, Any]:
        await asyncio.sleep(1)
        return says("it failed", isError=True)

    return book.begin(work)


@tool()
async def protocol_error_job(given: dict[str, Any], request: Request) -> dict[str, Any]:
    require_capability(request.ctx)

    async def work(job: Job) -> dict[str, Any]:
        await asyncio.sleep(0.2)
        raise MCPError(types.INTERNAL_ERROR, "broken")

    return book.begin(work)


@tool({"type": "object", "properties": {"filename": {"type": "string"}}})
async def confirm_delete(given: dict[str, Any], request: Request) -> dict[str, Any]:
    require_capability(request.ctx)

    async def work(job: Job) -> dict[str, Any]:
        answer = await job.ask("confirm")
        return says(f"deleted: {answer['action']}")

    return book.begin(work)


@tool()
async def multi_input(given: dict[str, Any], request: Request) -> dict[str, Any]:
    require_capability(request.ctx)

    async def work(job: Job) -> dict[str, Any]:
        await asyncio.gather(job.ask("first"), job.ask("second"))
        return says("both")

    return book.begin(work)


@tool()
async def test_tool_with_task(given: dict[str, Any], request: Request) -> dict[str, Any]:
    if not answers(request):
        return asks({"name": name_request()}, "before-task")

    who = answers(request)["name"]["content"]["name"]

    async def work(job: Job) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return says(f"composed for {who}")

    return book.begin(work) if request.takes_tasks else says(f"composed for {who}")


class Fixtures:
    """The surface with all of them."""

    name, version, instructions = "conformance", "1", "Fixtures for the conformance suites."

    def tools(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "description": f"The fixture {name}.", "inputSchema": schema}
            for name, (schema, _) in TOOLS.items()
        ]

    async def call(self, name: str, arguments: dict[str, Any], request: Request) -> dict[str, Any]:
        return await TOOLS[name][1](arguments, request)

    def tasks(self) -> Book:
        return book

    def resources(self) -> list[dict[str, Any]]:
        names = ("static-text", "static-binary", "watched-resource")
        return [{"uri": f"test://{name}", "name": name} for name in names]

    def templates(self) -> list[dict[str, Any]]:
        return [{"uriTemplate": "test://template/{id}/data", "name": "template",
                 "mimeType": "application/json"}]  # fmt: skip

    async def read(self, uri: str) -> list[dict[str, Any]]:
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": IMAGE}]
        if uri in ("test://static-text", "test://watched-resource"):
            return [{"uri": uri, "mimeType": "text/plain", "text": "This is the content."}]
        if uri.startswith("test://template/") and uri.endswith("/data"):
            which = uri.split("/")[3]
            text = json.dumps({"id": which, "templateTest": True, "data": f"Data for ID: {which}"})
            return [{"uri": uri, "mimeType": "application/json", "text": text}]
        raise KeyError(uri)


# Prompts and completion, which our own server does not have

_PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(ctx: Any, params: Any) -> Any:
    return {
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "prompts": [
            {"name": name, "description": name,
             "arguments": [{"name": one, "required": True} for one in given]}
            for name, given in _PROMPTS.items()
        ],
    }  # fmt: skip


async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> Any:
    given = params.arguments or {}
    if params.name not in _PROMPTS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    if params.name == "test_simple_prompt":
        content = [{"type": "text", "text": "This is a simple prompt for testing."}]
    elif params.name == "test_prompt_with_arguments":
        words = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
        content = [{"type": "text", "text": words}]
    elif params.name == "test_prompt_with_embedded_resource":
        content = [embedded(given["resourceUri"], "text/plain", "Embedded resource content."),
                   {"type": "text", "text": "Please process the embedded resource above."}]  # fmt: skip
    elif params.name == "test_prompt_with_image":
        content = [_PICTURE, {"type": "text", "text": "Please analyze the image above."}]
    else:
        got = (ctx.params or {}).get("inputResponses") or {}
        if "user_context" not in got:
            return asks({"user_context": name_request("What context?")})
        content = [{"type": "text", "text": f"Use the following context: {got['user_context']}"}]
    messages = [{"role": "user", "content": one} for one in content]
    return {"resultType": "complete", "messages": messages}


async def complete(ctx: Any, params: Any) -> Any:
    return {"resultType": "complete", "completion": {"values": [], "total": 0, "hasMore": False}}


async def set_level(ctx: Any, params: Any) -> Any:
    return types.EmptyResult()


class Events(EventStore):
    """Remembers events, for clients of the handshake era that come back."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        number = int(last_event_id)
        stream = self.events[number - 1][0]
        for at, (one, message) in enumerate(self.events[number:], number + 1):
            if one == stream and message is not None:
                await send_callback(EventMessage(message, str(at)))
        return stream


def main() -> None:
    server = build(Fixtures(), bus)
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, list_prompts)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get_prompt)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    security = RequestStateSecurity(keys=[b"a key for the fixtures of this test only"])
    server.middleware.append(RequestStateBoundary(security, default_audience="conformance"))
    app = server.streamable_http_app(event_store=Events(), retry_interval=100)

    class Telling(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    Telling(uvicorn.Config(app, port=int(sys.argv[1]), log_level="error")).run()


if __name__ == "__main__":
    main()
