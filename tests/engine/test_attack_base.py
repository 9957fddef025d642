"""What an attack on spawning, on keepers that serve again, and on bulk output found."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.core.states import State

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("X1")
async def test_signals_that_the_caller_blocks_do_not_reach_keeper_or_program(folder: Path) -> None:
    """A supervisor blocks SIGCHLD and waits for it by sigwait: its keepers must not inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGALRM})
    try:
        async with Engine(str(folder)) as engine:
            words = ["grep", "^SigBlk", "/proc/self/status"]
            snapshot = await asyncio.wait_for(engine.run(command=words), 20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert snapshot.state is State.SUCCEEDED
    assert int(snapshot.output.split()[1], 16) & 0x7FFFFFFF == 0
