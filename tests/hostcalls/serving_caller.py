"""A caller that serves a function for ever; the tests kill it in the middle of a call."""

import asyncio
import sys

from host_help import run_fake

from tenuto import Engine


async def main() -> None:
    async def slow(text: str) -> str:
        print(f"called={text};", flush=True)
        await asyncio.Event().wait()
        return text

    async with Engine() as engine:
        code = 'value([answer(n)["value"] for n in [ask("slow", "a"), ask("slow", "b")]])'
        await run_fake(engine, code, {"slow": slow})


sys.exit(asyncio.run(main()))
