"""What the SDK says to a client's first questions, said without it. A test holds the two together.

Only questions of the most ordinary form are answered; everything else is left to the SDK.
"""

from __future__ import annotations

import os
from typing import Any, cast

from tenuto import __version__
from tenuto.mcp import catalogue

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
_META = "io.modelcontextprotocol/"
SUBSCRIPTION = _META + "subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_CHANGES = {"toolsListChanged", "resourcesListChanged"}
_INFO = {"name": "tenuto", "version": __version__}


class Greeter:
    """Answers the first questions of one client."""

    def __init__(self) -> None:
        """Begin before the handshake."""
        self._version = ""

    def answer(self, message: Any) -> dict[str, Any] | None:
        """Return the result for an ordinary first question, or None to leave it to the SDK."""
        method, given = _request(message)
        if given is None:
            return None
        if method == "initialize":
            return self._initialize(given)
        return (_handshake_era if self._version else _modern_era)(method, given)

    def acknowledge(self, message: Any) -> dict[str, Any] | None:
        """Return the notification that opens a stream of changes, if that is all that is wanted.

        Claude Code asks for nothing else before it has it. The stream itself is the SDK's.
        """
        method, given = _request(message)
        if self._version or method != "subscriptions/listen" or given is None:
            return None
        wanted = given.get("notifications")
        if set(given) != {"_meta", "notifications"} or not _is_modern(given["_meta"]):
            return None
        if not isinstance(wanted, dict) or not _are_changes(cast("dict[str, Any]", wanted)):
            return None
        params: dict[str, Any] = {"_meta": {SUBSCRIPTION: message["id"]}, "notifications": wanted}
        return {"jsonrpc": "2.0", "method": ACKNOWLEDGED, "params": params}

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any] | None:
        version, client = params.get("protocolVersion"), params.get("clientInfo")
        if self._version or version not in HANDSHAKE_VERSIONS or not _is_client(client):
            return None
        if params.get("capabilities") != {} and not _are_capabilities(params.get("capabilities")):
            return None
        self._version = str(version)
        return {
            "protocolVersion": version,
            "capabilities": {
                "logging": {},
                "resources": {"subscribe": True, "listChanged": False},
                "tools": {"listChanged": False},
            },
            "serverInfo": _INFO,
            "instructions": catalogue.INSTRUCTIONS,
        }


def _request(message: Any) -> tuple[object, dict[str, Any] | None]:
    """Return a request's method and params; no params if it is not of the ordinary form."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":  # pyright: ignore
        return None, None
    request = cast("dict[str, Any]", message)
    number, params = request.get("id"), request.get("params", {})
    whole = isinstance(number, (int, str)) and not isinstance(number, bool)
    if not whole or not isinstance(params, dict):
        return None, None
    return request.get("method"), cast("dict[str, Any]", params)


def _handshake_era(method: object, params: dict[str, Any]) -> dict[str, Any] | None:
    if set(params) - {"_meta"} or not isinstance(params.get("_meta", {}), dict):
        return None
    if any(key.startswith(_META) for key in params.get("_meta", {})):
        return None
    if method == "tools/list":
        return {"tools": _tools()}
    if method == "resources/list":
        return {"resources": catalogue.RESOURCES}
    return {} if method == "ping" else None


def _modern_era(method: object, params: dict[str, Any]) -> dict[str, Any] | None:
    if set(params) != {"_meta"} or not _is_modern(params["_meta"]):
        return None
    common = {
        "resultType": "complete",
        "ttlMs": 300_000,
        "cacheScope": "public",
        "_meta": {_META + "serverInfo": _INFO},
    }
    if method == "tools/list":
        return {**common, "tools": _tools()}
    if method == "resources/list":
        changing = {"ttlMs": 0, "cacheScope": "private"}
        return {**common, **changing, "resources": catalogue.RESOURCES}
    if method == "server/discover":
        return {
            **common,
            "supportedVersions": [MODERN_VERSION],
            "capabilities": {
                "logging": {},
                "resources": {"subscribe": True, "listChanged": True},
                "tools": {"listChanged": True},
                "extensions": {catalogue.TASKS: {}},
            },
            "instructions": catalogue.INSTRUCTIONS,
        }
    return None


def _is_modern(meta: Any) -> bool:
    """Tell whether a request carries what the newest version asks for, in an ordinary form."""
    if not isinstance(meta, dict):
        return False
    given = cast("dict[str, Any]", meta)
    if given.get(_META + "protocolVersion") != MODERN_VERSION:
        return False
    capabilities, client = given.get(_META + "clientCapabilities"), given.get(_META + "clientInfo")
    ordinary = client is None or _is_client(client)
    return ordinary and (capabilities == {} or _are_capabilities(capabilities))


def _are_changes(wanted: dict[str, Any]) -> bool:
    return wanted.keys() <= _CHANGES and all(one is True for one in wanted.values())


def _is_client(client: Any) -> bool:
    if not isinstance(client, dict):
        return False
    known = cast("dict[str, Any]", client)
    names = (known.get("name"), known.get("version"))
    return all(isinstance(one, str) for one in names) and "icons" not in known


def _are_capabilities(given: Any) -> bool:
    """Tell whether a client's capabilities are an object of objects, as they should be."""
    return isinstance(given, dict) and all(
        isinstance(one, dict)
        for one in given.values()  # pyright: ignore
    )


def _tools() -> list[dict[str, Any]]:
    """Return the tools with the size at which this project's answers are cut."""
    from tenuto.core.quantities import brief_size
    from tenuto.engine.settings import load_settings
    from tenuto.stores.layout import current_folder, find_project

    project = find_project(current_folder(), os.environ)
    settings, _ = load_settings(project.root, os.environ)
    return catalogue.tools(brief_size(max(settings.mcp_output, catalogue.LEAST_OUTPUT)))
