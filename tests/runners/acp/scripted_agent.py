"""An agent that speaks ACP through the SDK's own agent side; what it does is said by the prompt.

Sessions are kept in the folder SCRIPTED_HOME, so that another process can take them up.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import acp
from acp.helpers import (
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentCapabilities,
    Cost,
    Implementation,
    PermissionOption,
    SessionCapabilities,
    SessionResumeCapabilities,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
)

HOME = Path(os.environ["SCRIPTED_HOME"])
ABLE = os.environ.get("SCRIPTED_ABLE", "load")
OPTIONS = os.environ.get("SCRIPTED_OPTIONS", "allow_once,allow_always,reject_once").split(",")


class Agent:
    """Does as it is told."""

    conn: Any

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.servers: list[Any] = []
        self.late: asyncio.Task[None] | None = None

    def on_connect(self, conn: Any) -> None:
        self.conn = conn

    async def initialize(self, protocol_version: int, **given: Any) -> Any:
        if ABLE == "version":
            return acp.InitializeResponse(protocol_version=7)
        (HOME / "client.json").write_text(given["client_capabilities"].model_dump_json())
        resume = SessionResumeCapabilities() if ABLE == "resume" else None
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_info=Implementation(name="scripted", version="1.2.3"),
            agent_capabilities=AgentCapabilities(
                load_session=ABLE in ("load", "late"),
                session_capabilities=SessionCapabilities(resume=resume),
            ),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **given: Any) -> Any:
        if ABLE == "login":
            raise acp.RequestError.auth_required()
        self.servers = mcp_servers or []
        session = str(uuid.uuid4())
        self._keep(session, [])
        return acp.NewSessionResponse(session_id=session)

    async def load_session(self, cwd: str, session_id: str, **given: Any) -> Any:
        history = self._kept(session_id)
        if ABLE == "late":  # answers first, and goes on replaying after that
            self.late = asyncio.create_task(self._replay(session_id, history * 20))
        else:
            await self._replay(session_id, history)
        return acp.LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **given: Any) -> Any:
        self._kept(session_id)
        return acp.schema.ResumeSessionResponse()

    async def _replay(self, session: str, history: list[list[str]]) -> None:
        await self._paid(session, 0.5)
        for asked, said in history:
            await self.conn.session_update(session, update_user_message_text(asked))
            await self.conn.session_update(session, update_agent_message_text(said))

    async def cancel(self, session_id: str, **given: Any) -> None:
        self.cancelled.set()

    def _kept(self, session: str) -> list[list[str]]:
        try:
            return json.loads((HOME / session).read_text())
        except FileNotFoundError:
            raise acp.RequestError.resource_not_found(session) from None

    def _keep(self, session: str, history: list[list[str]]) -> None:
        (HOME / session).write_text(json.dumps(history))

    async def prompt(self, session_id: str, prompt: list[Any], **given: Any) -> Any:
        text = prompt[0].text
        self.cancelled.clear()
        history = self._kept(session_id)
        self._keep(session_id, [*history, [text, f"answer to {text}"]])
        word = text.split()[-1]
        answer = await getattr(self, f"do_{word}")(session_id, text)
        if isinstance(answer, str):
            return acp.PromptResponse(stop_reason=answer)  # pyright: ignore[reportArgumentType]
        return answer

    async def _say(self, session: str, text: str) -> None:
        await self.conn.session_update(session, update_agent_message_text(text))

    async def _paid(self, session: str, amount: float) -> None:
        update = UsageUpdate(
            session_update="usage_update", used=1, size=2, cost=Cost(amount=amount, currency="USD")
        )
        await self.conn.session_update(session, update)

    async def do_hello(self, session: str, text: str) -> str:
        await self.conn.session_update(session, update_agent_thought_text("let me think"))
        for piece in ("Hello", ", ", "wörld"):
            await self._say(session, piece)
        return "end_turn"

    async def do_echo(self, session: str, text: str) -> str:
        await self._say(session, text)
        return "end_turn"

    async def do_history(self, session: str, text: str) -> str:
        await self._say(session, json.dumps([asked for asked, _ in self._kept(session)]))
        return "end_turn"

    async def do_large(self, session: str, text: str) -> str:
        await self._say(session, "x" * 20_000_000)
        return "end_turn"

    async def do_tool(self, session: str, text: str) -> str:
        await self._say(session, "I look.")
        updates = (
            start_tool_call("t1", "grep", kind="search", status="pending", raw_input={}),
            update_tool_call("t1", status="in_progress", raw_input={"pattern": "x"}),
            update_tool_call(
                "t1", status="completed", content=[tool_content(text_block("found x"))]
            ),
            start_tool_call("t2", "run it now", kind="execute", status="in_progress"),
            update_tool_call("t2", status="failed", raw_output={"error": "no such file"}),
        )
        for update in updates:
            await self.conn.session_update(session, update)
        await self._say(session, "That was it.")
        return "end_turn"

    async def _ask(self, session: str) -> str:
        self.call = str(uuid.uuid4())
        call = ToolCallUpdate(
            tool_call_id=self.call, title="rm -r x", kind="delete", raw_input={"path": "x"}
        )
        options = [PermissionOption(option_id=f"the-{one}", name=one, kind=one) for one in OPTIONS]  # pyright: ignore[reportArgumentType]
        answer = await self.conn.request_permission(
            session_id=session, tool_call=call, options=options
        )
        return getattr(answer.outcome, "option_id", answer.outcome.outcome)

    async def do_ask(self, session: str, text: str) -> str:
        chosen = await self._ask(session)
        status = "completed" if "allow" in chosen else "failed"
        await self.conn.session_update(session, update_tool_call(self.call, status=status))
        await self._say(session, f"got {chosen}")
        return "cancelled" if self.cancelled.is_set() else "end_turn"

    async def do_sulk(self, session: str, text: str) -> str:
        await self._say(session, "I try.")
        await self._ask(session)
        return "end_turn"

    async def do_wait(self, session: str, text: str) -> str:
        await self._say(session, "waiting")
        if (HOME / "begun").exists():
            await asyncio.to_thread((HOME / "begun").write_text, "yes")
        await self.cancelled.wait()
        return "cancelled"

    async def do_crash(self, session: str, text: str) -> str:
        await self._say(session, "so far")
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)

    def _print(self, line: str) -> None:
        os.write(1, line.encode() + b"\n")

    async def do_stray(self, session: str, text: str) -> str:
        for line in ("(node:1) Warning: old", "", "[1, 2]", "{ not: 'ours' }", '{"some": "log"}'):
            self._print(line)
        self._print(
            json.dumps(
                {
                    "jsonrpc": "2.0",
                    "method": "session/update",
                    "params": {"sessionId": session, "update": {"sessionUpdate": "of tomorrow"}},
                }
            )
        )
        await self._say(session, "still here")
        return "end_turn"

    async def do_torn(self, session: str, text: str) -> str:
        await self._say(session, "so far")
        self._print('{"jsonrpc":"2.0","method":"session/upd')
        await asyncio.Event().wait()
        return "end_turn"

    async def do_nonsense(self, session: str, text: str) -> str:
        self._print('{"jsonrpc":"2.0","method":"session/update","params":{"update":7}}')
        await asyncio.Event().wait()
        return "end_turn"

    async def do_shut(self, session: str, text: str) -> str:
        os.close(1)
        await asyncio.Event().wait()
        return "end_turn"

    async def do_stop(self, session: str, text: str) -> str:
        await self._say(session, "half of")
        return text.split(maxsplit=1)[0]

    async def do_fail(self, session: str, text: str) -> str:
        code, _, message = text.removesuffix(" fail").partition(" ")
        raise acp.RequestError(int(code), "Internal error", {"details": message})

    async def do_servers(self, session: str, text: str) -> str:
        await self._say(session, json.dumps([one.model_dump() for one in self.servers]))
        return "end_turn"

    async def do_usage(self, session: str, text: str) -> Any:
        await self._paid(session, 0.75)
        return acp.PromptResponse(
            stop_reason="end_turn",
            usage=Usage(
                total_tokens=1050, input_tokens=1000, output_tokens=50, cached_read_tokens=800
            ),
        )


asyncio.run(acp.run_agent(Agent(), use_unstable_protocol=True))  # pyright: ignore[reportArgumentType]
