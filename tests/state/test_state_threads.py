"""Several threads, each with an engine of its own, that are all the first to read something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from state_help import ended, resume, stopped

from tenuto.engine.blocking import BlockingEngine
from tenuto.stores.layout import Project

READS = """
import os, sys
from tenuto.core.plan import read_plan
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine import budgets, composed, history, saved, tasks
from tenuto.engine.agent_settings import load_agent_settings
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import load_settings
from tenuto.engine.validation import check_resume
from tenuto.stores.layout import find_project
from tenuto.stores.states import read_state

late = []

def watch(frame, what, _):
    if what == "call" and frame.f_code.co_name == "get_class_annotations":
        late.append(str(frame.f_locals))

project = find_project(os.getcwd(), os.environ)
settings, _ = load_settings(project.root, os.environ)
sys.setprofile(watch)
load_agent_settings(project.root, os.environ)
engine = BlockingEngine(project, settings, FreshLauncher())
one = sys.argv[1]
assert read_state(project.folder(one), one).state is not None
read_plan('[{"id": "a", "task": "x"}]')
tasks.checked(engine, tasks.task_spec("do it"))
budgets.set_limits(engine, daily=5)
budgets.report(engine, 5)
budgets.report(engine, 5)
saved.state_of(engine, one)
saved.checkpoints_of(engine, one)
saved.checkpoint(engine, one)
history.history(engine, one)
tasks.progress_now(project, one)
execution = engine.execution(one)
check_resume(engine, execution, execution.spec, False)
sys.setprofile(None)
engine.close()
sys.exit("\\n".join(late) or 0)
"""


@pytest.mark.promise("D3")
def test_what_threads_read_is_laid_out_before_they_begin(
    tasks: BlockingEngine, project: Project, folder: Path
) -> None:
    """Two that make msgspec work out a struct at the same moment end the process by a fault."""
    execution_id = stopped(tasks)
    with (folder / "tenuto.toml").open("a") as file:
        file.write('[roles.poet]\ntext = "You write."\n[selection.types]\nbugfix = 2\n')
    environ = {**os.environ, "TENUTO_HOME": project.home}
    done = subprocess.run(
        [sys.executable, "-c", READS, execution_id],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    resume(tasks, execution_id)
    assert ended(tasks, execution_id).state == "succeeded"
