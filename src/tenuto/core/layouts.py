"""Structs that are made ready as their module is loaded, before several threads read into them."""

from __future__ import annotations

import msgspec


def lay_out(*structs: type[msgspec.Struct]) -> None:
    """Have msgspec work out these structs now, and all that they hold.

    It does so where one is first decoded into, and crashes the process if two threads are first at
    the same time. Whoever loads a module is alone in it.
    """
    for one in structs:
        msgspec.json.Decoder(one)
