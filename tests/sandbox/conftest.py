"""Boxes: a project, a home and a secret outside, as root and as nobody, on every rung."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from box import NOBODY, Box, need

RUNGS = ["bwrap", "landlock"]
USERS = {"own": None, "nobody": NOBODY}


@pytest.fixture(params=RUNGS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A box for our own user."""
    need(request.param)
    box = Box(request.param)
    yield box
    box.close()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((rung, user), id=f"{rung}-{user}")
        for rung in RUNGS
        for user in (USERS if os.geteuid() == 0 else ["own"])
    ],
)
def any_box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A box for our own user, then for an ordinary one; shared by a module."""
    rung, user = request.param
    need(rung, USERS[user])
    box = Box(rung, USERS[user])
    yield box
    box.close()
