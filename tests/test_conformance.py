"""Every implementation of a port passes the port's suite."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto.core import events as ev
from tenuto.core.confinement import Subject, View
from tenuto.core.errors import SandboxUnavailable
from tenuto.core.ids import new_id
from tenuto.core.ports import Dispatcher, Rung, Store
from tenuto.core.specs import Spec
from tenuto.dispatch.launch import FreshLauncher, ZygoteLauncher
from tenuto.engine.watch import Watch
from tenuto.sandboxes import Ladder
from tenuto.sandboxes.bwrap import Bwrap
from tenuto.sandboxes.landlocked import Landlocked
from tenuto.sandboxes.unheld import Unheld
from tenuto.stores.index import Index
from tenuto.stores.layout import Project, make_home
from tenuto.stores.pen import Pen
from tenuto.testing import conformance
from tenuto.testing.dummies import IdleDispatcher, MemoryStore, OpenRung


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(root=str(tmp_path), home=str(tmp_path / "state"))
    make_home(project)
    return project


@pytest.mark.parametrize("check", conformance.STORE_SUITE)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_store_conforms(
    kind: str, check: Callable[[Callable[[], Store]], None], project: Project
) -> None:
    check(MemoryStore if kind == "memory" else lambda: Index(project, list))


@pytest.mark.parametrize(
    ("make", "taken"), [(FreshLauncher, True), (ZygoteLauncher, True), (IdleDispatcher, False)]
)
def test_every_dispatcher_conforms(
    make: Callable[[], Dispatcher], taken: bool, project: Project
) -> None:
    execution_id = new_id()
    spec = Spec(kind="command", argv=("/bin/true",), cwd="/")
    pen = Pen.create(project.folder(execution_id), ev.Created(id=execution_id, spec=spec))
    job = {
        "v": 1, "id": execution_id, "magic": pen.magic.hex(), "next_seq": pen.next_seq,
        "last_ns": pen.last_ns, "argv": ["/bin/true"], "cwd": "/", "env": {}, "code": None,
        "pty": False, "limits": {}, "deadline": None, "idle": None,
    }  # fmt: skip
    data = json.dumps(job).encode()
    found = conformance.dispatcher_says_who_took_the_job(make, data, pen.fd, pen.dir_fd)
    pen.put_down()
    assert found == taken
    if taken:
        with Watch(project, execution_id) as watch:
            while watch.execution.live:
                watch.look()
    assert os.path.isdir(project.folder(execution_id))


SUBJECT = Subject(
    id="x",
    argv=("/bin/echo", "word"),
    cwd="/",
    environ={"PATH": "/bin"},
    view=View(("/usr", "/bin"), (), ()),
)


@pytest.mark.promise("S2")
@pytest.mark.parametrize("check", conformance.RUNG_SUITE)
@pytest.mark.parametrize("make", [Bwrap, Landlocked, Unheld, OpenRung])
def test_every_rung_conforms(
    make: Callable[[], Rung], check: Callable[[Callable[[], Rung], Subject], None]
) -> None:
    check(make, SUBJECT)


@pytest.mark.promise("S2")
def test_a_ladder_takes_the_first_rung_that_holds_everything() -> None:
    broken = OpenRung("one", problem="it broke")
    weak = OpenRung("two", lacking=["the moon"])
    strong = OpenRung("three")
    chosen = Ladder([broken, weak, strong]).choose(SUBJECT, "auto")
    assert chosen.confine["report"]["level"] == "two"
    assert chosen.confine["report"]["missing"] == ["one: it broke", "the moon"]
    required = Ladder([broken, weak, strong]).choose(SUBJECT, "require")
    assert required.confine["report"]["level"] == "three"
    with pytest.raises(SandboxUnavailable, match="one: it broke; two: the moon"):
        Ladder([broken, weak]).choose(SUBJECT, "require")
