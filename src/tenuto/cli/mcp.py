"""tenuto mcp: the MCP server. It is found by name: surfaces do not import each other."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console


def mcp_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto mcp`."""
    parser.add_argument("--http", action="store_true", help="Streamable HTTP instead of stdio")
    parser.add_argument(
        "--port", type=int, default=7349, metavar="N", help="for --http (default 7349; 0: any)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="for --http (default: loopback)"
    )


def mcp(args: argparse.Namespace, console: Console) -> int:
    """Serve until the client leaves."""
    del console
    main: Any = importlib.import_module("tenuto.mcp.main")
    if args.http:
        return int(main.serve_http(args.host, args.port))
    return int(main.serve_stdio())
