"""An MCP server on stdio with one tool, which tells its arguments and a variable."""

import json
import os
import sys

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        answer = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "little", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        schema = {"type": "object", "properties": {}}
        answer = {"tools": [{"name": "peek", "description": "Peek.", "inputSchema": schema}]}
    elif asked["method"] == "tools/call":
        text = f"{sys.argv[1:]} {os.environ.get('LITTLE')}"
        answer = {"content": [{"type": "text", "text": text}]}
    else:
        answer = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
