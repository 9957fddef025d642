"""The gateway's process, started by engine.gateways: ROOT HOME [IDLE] are its words."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Sequence
from functools import partial

from tenuto.core.errors import TenutoError
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine import gateways
from tenuto.engine.agent_settings import load_agent_settings
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.budgets import LimitsInForce, prices_of
from tenuto.engine.settings import Settings
from tenuto.keeper.procfs import MARK
from tenuto.metering.serving import serve
from tenuto.stores.layout import Project
from tenuto.stores.tape import is_kept

_IDLE_S = 600.0
_FILES = 65536


def main(words: Sequence[str] | None = None) -> int:
    """Serve until nobody needs it."""
    root, home, *rest = sys.argv[1:] if words is None else words
    _raise_files()
    project = Project(root=root, home=home)
    agents, _ = load_agent_settings(root, os.environ)
    asyncio.run(
        serve(
            home,
            os.environ,
            os.environ.get(MARK, ""),
            idle_s=float(rest[0]) if rest else _IDLE_S,
            needed=lambda: _tasks_run(project),
            limits=LimitsInForce(project, os.environ),
            prices=prices_of(agents),
            on_ask=partial(gateways.tell, project, "ask"),
            on_warn=partial(gateways.tell, project, "warn"),
            lives=lambda execution: is_kept(project.folder(execution)),
            on_trouble=partial(gateways.tell_of_trouble, project),
        )
    )
    return 0


def _raise_files() -> None:
    """Take as many connections as may be had: idle ones must not keep others out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _tasks_run(project: Project) -> bool:
    """Tell whether any task of the project is live: its next request may come at any time."""
    try:
        engine = BlockingEngine(project, Settings(), FreshLauncher())  # no setting counts here
    except TenutoError:
        return False  # whoever needs us can have another of us
    try:
        return bool(engine.list(running=True, kind="task", most=1))
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
