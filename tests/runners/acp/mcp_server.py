"""The smallest MCP server: one tool, and a file that tells that it was listed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(os.environ["MARKS"])
TOOL = {
    "name": "ping",
    "description": "Answers pong.",
    "inputSchema": {"type": "object", "properties": {}},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: dict[str, object] = {}
    if message["method"] == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        }
    elif message["method"] == "tools/list":
        result = {"tools": [TOOL]}
        (HERE / "listed").touch()
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "pong"}]}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    print(json.dumps(answer), flush=True)
