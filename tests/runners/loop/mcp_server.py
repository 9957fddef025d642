"""A small MCP server on stdio, by hand: started in a moment, and with tools that misbehave."""

from __future__ import annotations

import json
import os
import sys

TOOLS = ("say", "fail", "hang", "die", "flood", "where")


def answer(name: str, given: dict[str, str]) -> dict[str, object]:
    if name == "hang":
        with open(given["begun"], "w") as file:
            file.write(str(os.getpid()))
        return {}
    if name == "die":
        os._exit(3)
    text = {
        "say": given.get("text", ""),
        "fail": "it went wrong",
        "flood": "x" * 1_000_000,
        "where": f"{os.getcwd()} {os.environ.get('SET_FOR_IT', '')}",
    }.get(name, "")
    return {"content": [{"type": "text", "text": text}], "isError": name == "fail"}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, given = message["method"], message.get("params") or {}
        reply: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
        if method == "initialize":
            version = given["protocolVersion"]
            info = {"name": "test", "version": "1"}
            reply["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}}
            reply["result"]["serverInfo"] = info  # type: ignore[index]
        elif method == "tools/list":
            schema = {"type": "object"}
            tools = [{"name": one, "description": one, "inputSchema": schema} for one in TOOLS]
            half = len(tools) // 2
            first = not given.get("cursor")
            reply["result"] = {"tools": tools[:half] if first else tools[half:]}
            if first:
                reply["result"]["nextCursor"] = "more"  # type: ignore[index]
        elif method == "tools/call":
            result = answer(given["name"], given.get("arguments") or {})
            if not result:
                continue
            reply["result"] = result
        else:
            reply["error"] = {"code": -32601, "message": f"no method {method}"}
        print(json.dumps(reply), flush=True)


main()
