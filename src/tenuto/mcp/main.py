"""`tenuto mcp`: serve the project around the current folder, over stdio or HTTP."""

from __future__ import annotations

import gc


def serve_stdio() -> int:
    """Serve the client at stdin and stdout until it leaves."""
    from tenuto.mcp.front import Front, Wire

    front = Front(Wire())
    front.start()
    import asyncio

    from tenuto.mcp.stdio import serve

    gc.freeze()  # what was loaded stays; it need not be looked through again
    asyncio.run(serve(front))
    return 0


def serve_http(host: str, port: int) -> int:
    """Serve clients over HTTP, on loopback unless told otherwise, until a signal comes."""
    import asyncio

    from tenuto.mcp.http import serve

    return asyncio.run(serve(host, port))
