"""What steps use is counted once for each, whoever opened the session they speak in."""

from __future__ import annotations

import pytest
from task_help import begin, blocking, plan, value

from tenuto.core.budget import Tokens
from tenuto.core.plan import Step
from tenuto.metering.ledger import Ledger
from tenuto.stores.layout import Project


@pytest.mark.promise("B1")
def test_what_is_used_in_a_session_that_goes_on_is_counted_for_each_step(
    agents: object, project: Project
) -> None:
    work = plan(*(Step(f"s{n}", f"[[use:{10**n},1]] [[say:x]]") for n in range(3)))
    with blocking(project) as engine:
        execution_id = begin(engine, plan=work, strategy="single", runtime="side")
        snapshot = engine.wait(execution_id, 60)
    steps = value(snapshot)["steps"]
    assert len({one["session"] for one in steps}) == 1, "one session for all of them"
    assert [one["tokens_in"] for one in steps] == [1, 10, 100]
    ledger = Ledger(project.home)
    assert ledger.spend(execution_id).tokens == Tokens(111, 3)
    ledger.close()
