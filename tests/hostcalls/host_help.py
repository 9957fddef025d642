"""What the tests of host calls share: work whose code is a stand-in for the VM."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec

from tenuto import Engine, Snapshot
from tenuto.codemode.registry import Registry
from tenuto.core.specs import Spec
from tenuto.engine.work import Work

CHILD = str(Path(__file__).with_name("fake_child.py"))


def fake_work(code: str, functions: Any) -> Work:
    spec = Spec(
        kind="code",
        argv=(sys.executable, "-u", CHILD),
        cwd=os.getcwd(),
        engine="fake",
        code=textwrap.dedent(code),
        functions=Registry(functions).specs,
    )
    return Work(spec, dict(os.environ), channel=True)


async def run_fake(engine: Engine, code: str, functions: Any, wait: float = 60) -> Snapshot:
    """Run the stand-in with functions served from here, as `engine.code` does with the VM."""
    work = fake_work(code, functions)
    began = time.monotonic()
    watch = await engine._host.start(work, Registry(functions))
    return await engine._wait(watch, wait, None, began)


def start_alone(engine: Engine, code: str, functions: Any, served: bool = False) -> str:
    """Start the stand-in with nobody to serve it."""
    work = msgspec.structs.replace(fake_work(code, functions), served=served)
    execution_id, sock = engine._engine.start(work)
    sock.close()
    return execution_id
