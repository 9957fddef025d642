"""An agent that behaves badly, in the process of the driver; a task's text says how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from tenuto.core.ports import Nursery
from tenuto.core.runs import (
    Capabilities,
    Finished,
    PermissionAsked,
    Probe,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
)

ESCAPE = "\x1b]0;mine\x07\x1b[2J"


class Rogue:
    """Its runner."""

    name = "rogue"
    family = "rogue"
    capabilities = Capabilities(permissions=True)

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        del environ
        return Probe(available=True, version="1")

    async def open(self, request: RunRequest, nursery: Nursery) -> RogueSession:
        del request, nursery
        return RogueSession()


class RogueSession:
    """A session with it."""

    session = "rogue"

    def __init__(self) -> None:
        self.bad = False
        self.deaf: asyncio.Event | None = None
        self.answers: asyncio.Queue[tuple[str, bool, str]] = asyncio.Queue()

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        yield SessionOpened("rogue")
        self.bad = "BAD END" in text
        if "LOUD" in text:
            yield Finished(ok=True, text="\x01" * 2_100_000)
        elif "STEERS" in text:
            yield ToolBegan("1", f"tool{ESCAPE}", {"path": ESCAPE})
            yield Said(f"half a character: \ud83d, and {ESCAPE}\n")
            yield Finished(ok=False, kind="failed", message=f"failed{ESCAPE}" + "x" * 100_000)
        elif "HUGE" in text:
            yield PermissionAsked(
                "1", "Bash" + ESCAPE + "y" * 100_000, {"command": "z" * 30_000_000}
            )
            _, allow, why = await self.answers.get()
            yield Finished(ok=allow, text="allowed", message=why, kind=None if allow else "failed")
        elif "DEAF" in text:
            self.deaf = asyncio.Event()
            yield PermissionAsked("1", "Bash", {"command": "true"})
            await self.deaf.wait()
            yield Finished(ok=False, interrupted=True)
        elif "HALVES" in text:
            yield ToolBegan("1", "Bash", {"command": ["\ud83d"]})
            yield PermissionAsked("1", "Bash\ud83d", {"command": "\ud83d"})
            _, allow, why = await self.answers.get()
            yield Finished(ok=allow, text="half of \ud83d", message=why)
        elif "FLOODS" in text:
            for number in range(300):
                yield PermissionAsked(str(number), "Bash", {"command": str(number)})
            refused = [await self.answers.get() for _ in range(200)]
            assert all("questions are open" in why for _, allow, why in refused if not allow)
            yield Finished(ok=True, text=f"refused {sum(not one[1] for one in refused)}")
        else:
            yield Finished(ok=True, text=text if "BEFORE" in text else "done")

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        if self.deaf is not None:
            raise OSError("it hears nothing")
        self.answers.put_nowait((request_id, allow, why))

    async def interrupt(self) -> None:
        if self.deaf is not None:
            self.deaf.set()

    async def close(self) -> None:
        if self.bad:
            raise OSError("it cannot be closed")
