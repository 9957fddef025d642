"""tenuto mcp: the MCP server. It is found by name: surfaces do not import each other."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from tenuto.core.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console


_PORT = 7349


def mcp_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto mcp`."""
    parser.add_argument("--http", action="store_true", help="Streamable HTTP instead of stdio")
    parser.add_argument(
        "--port", type=int, metavar="N", help=f"for --http (default {_PORT}; 0: any)"
    )
    parser.add_argument(
        "--host", choices=("127.0.0.1", "::1", "localhost"), help="for --http (default 127.0.0.1)"
    )


def mcp(args: argparse.Namespace, console: Console) -> int:
    """Serve until the client leaves."""
    main: Any = importlib.import_module("tenuto.mcp.main")
    if args.http:
        port = _PORT if args.port is None else args.port
        return int(main.serve_http(args.host or "127.0.0.1", port))
    if args.port is not None or args.host is not None:
        raise InvalidInput("--host and --port are for --http", "add --http, or leave them out")
    if os.isatty(0):  # nobody who speaks the protocol
        console.note(
            "tenuto: this speaks MCP on stdin and stdout: let a client start it, as in\n"
            "  claude mcp add tenuto -- tenuto mcp\nor serve with --http. Ctrl-C ends it."
        )
    return int(main.serve_stdio())
