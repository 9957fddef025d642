"""The MCP server: executions for every client that speaks the protocol, over stdio and HTTP."""
