"""Code that calls functions of this process, and a tool that is composed of them.

Run it with `python examples/functions.py`. Everything happens in a temporary folder.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

from tenuto import Engine

STOCK = {"apple": 3, "pear": 0, "plum": 12}
CODE = """
const names = await shop.names();
const all = await Promise.all(names.map(async (name) => ({name, count: await shop.count({name})})));
console.log('looked at', all.length);
let missing;
try { await shop.count({fruit: 'fig'}); } catch (error) { missing = error.message; }
({there: all.filter((one) => one.count > 0).map((one) => one.name), missing})
"""


def names() -> list[str]:
    """Name everything."""
    return list(STOCK)


async def count(name: str) -> int:
    """Tell how much there is of something."""
    return STOCK[name]


async def main() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string"}}},
        "required": ["words"],
    }
    async with Engine() as engine:
        snapshot = await engine.code(CODE, functions={"shop.names": names, "shop.count": count})
        print(snapshot.raise_for_state().value)
        await engine.tools.save("join", "inputs.words.join(' and ')", schema=schema)
        print((await engine.tools.run("join", {"words": snapshot.value["there"]})).value)
        again = await engine.code("(await tools.join({words: ['one', 'two']})).toUpperCase()")
        print(again.value, (await engine.tools.show("join")).uses)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TENUTO_HOME"] = os.path.join(folder, "state")
        asyncio.run(main())
        os.chdir("/")
