import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit_help import begun, ended, engine_in

from tenuto.core import events as ev
from tenuto.core.errors import InvalidInput
from tenuto.core.listing import Query, Row
from tenuto.core.states import State
from tenuto.engine import retention
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.retention import Cleaned, clean, clean_by_settings, folder_size
from tenuto.engine.settings import Settings
from tenuto.stores.pen import Pen


@pytest.fixture
def engine(tmp_path) -> Iterator[BlockingEngine]:
    engine = engine_in(tmp_path, Settings(), {})
    assert engine.index.counts() == {}
    yield engine
    engine.close()


def left(engine: BlockingEngine) -> list[str]:
    on_disk = list(engine.project.all_ids())
    assert [row.id for row in engine.index.latest(Query())] == on_disk[::-1]
    return on_disk


@pytest.mark.promise("X15")
def test_old_ones_go_by_their_end(engine):
    old = ended(engine, age_s=3600)
    young = ended(engine, age_s=10)
    size = folder_size(engine.project.folder(old))
    assert clean(engine, older_s=600) == Cleaned(1, size)
    assert left(engine) == [young]
    assert clean(engine, older_s=600) == Cleaned(0, 0)


@pytest.mark.promise("X15")
def test_the_newest_are_kept_by_count(engine):
    ids = [ended(engine) for _ in range(6)]
    assert clean(engine, keep=2).removed == 4
    assert left(engine) == ids[-2:]
    assert clean(engine, keep=0).removed == 2
    assert left(engine) == []


@pytest.mark.promise("X15")
def test_the_newest_that_fit_together_are_kept_by_size(engine):
    ids = [ended(engine, size=10_000) for _ in range(5)]
    one = folder_size(engine.project.folder(ids[0]))
    assert clean(engine, max_size=3 * one + 5).removed == 2
    assert left(engine) == ids[-3:]


@pytest.mark.promise("X15")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([0, 100, 5000])), max_size=6),
    st.sampled_from([None, 50, 2500, 6000]),  # never at an edge: the test takes time itself
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 5000),
)
def test_cleaning_removes_exactly_what_breaks_a_bound(tmp_path_factory, made, older, keep, most):
    engine = engine_in(tmp_path_factory.mktemp("clean"), Settings(), {})
    ids = [ended(engine, size=size, age_s=age) for size, age in made]
    sizes = {one: folder_size(engine.project.folder(one)) for one in ids}
    stay = list(zip(ids, made, strict=True))[::-1]  # newest first
    doomed = {one for one, (_, age) in stay if older is not None and age > older}
    doomed |= {one for one, _ in stay[keep:]} if keep is not None else set()
    total = 0
    for one, _ in stay:
        if one not in doomed and most is not None:
            total += sizes[one]
            if total > most:
                doomed.add(one)
    done = clean(engine, older_s=older, keep=keep, max_size=most)
    assert done == Cleaned(len(doomed), sum(sizes[one] for one in doomed))
    assert left(engine) == [one for one in ids if one not in doomed]
    engine.close()


# Never a live one


@pytest.mark.promise("X15")
def test_a_live_one_is_never_removed(engine):
    execution_id, pen = begun(engine.project, pid=os.getpid())
    engine.index.add(Row(execution_id, "command", State.RUNNING, created_ns=1))
    assert clean(engine, older_s=0, keep=0, max_size=0) == Cleaned(0, 0)
    assert left(engine) == [execution_id]
    pen.put_down()


@pytest.mark.promise("X15")
def test_an_ended_one_whose_keeper_still_has_processes_is_never_removed(engine):
    execution_id, pen = begun(engine.project)
    pen.append(ev.Ended(state=State.SUCCEEDED, left=(ev.LeftBehind(1, 2, "daemon"),)))
    engine.index.add(Row(execution_id, "command", State.SUCCEEDED, created_ns=1, ended_ns=2))
    assert clean(engine, older_s=0, keep=0, max_size=0) == Cleaned(0, 0)
    assert left(engine) == [execution_id]
    pen.put_down()
    assert clean(engine, keep=0).removed == 1


@pytest.mark.promise("X15")
def test_one_that_is_resumed_while_others_are_cleaned_stays(engine, monkeypatch):
    """Its row says lost; its lock is taken after the list was made."""
    execution_id = ended(engine, state=State.INTERRUPTED)
    pens = []
    real = retention._over_size

    def resuming(*args):
        pen = Pen.take_up(engine.project.folder(execution_id))
        pens.append(pen)
        return real(*args)

    monkeypatch.setattr(retention, "_over_size", resuming)
    assert clean(engine, keep=0, max_size=0) == Cleaned(0, 0)
    assert left(engine) == [execution_id]
    pens[0].put_down()


@pytest.mark.promise("X15")
def test_a_dead_keepers_execution_is_settled_then_cleaned(engine):
    execution_id, pen = begun(engine.project)
    engine.index.add(Row(execution_id, "command", State.RUNNING, created_ns=1))
    pen.put_down()
    assert clean(engine, keep=0).removed == 1
    assert left(engine) == []


def test_one_without_a_folder_is_forgotten(engine):
    execution_id = ended(engine)
    for name in os.listdir(engine.project.folder(execution_id)):
        os.unlink(os.path.join(engine.project.folder(execution_id), name))
    os.rmdir(engine.project.folder(execution_id))
    assert clean(engine, keep=0) == Cleaned(1, 0)
    assert left(engine) == []


def test_a_day_goes_with_its_last_execution(engine):
    execution_id = ended(engine)
    clean(engine, keep=0)
    assert os.listdir(engine.project.executions) == []
    assert not os.path.exists(engine.project.folder(execution_id))


@pytest.mark.parametrize("bound", [{"older_s": -1}, {"keep": -1}, {"max_size": -1}])
def test_a_bound_below_zero_is_refused(engine, bound):
    execution_id = ended(engine)
    with pytest.raises(InvalidInput):
        clean(engine, **bound)
    assert left(engine) == [execution_id]


@pytest.mark.promise("X15")
def test_by_default_nothing_is_ever_cleaned(engine):
    execution_id = ended(engine, age_s=10**8, size=10**6)
    assert clean_by_settings(engine) == Cleaned(0, 0)
    assert clean(engine) == Cleaned(0, 0)
    assert left(engine) == [execution_id]


@pytest.mark.promise("X15")
@pytest.mark.parametrize(
    "chosen",
    [Settings(retention_age=60.0), Settings(retention_count=1), Settings(retention_size=2000)],
    ids=["age", "count", "size"],
)
def test_the_settings_are_followed(tmp_path, chosen):
    engine = engine_in(tmp_path, chosen, {})
    ended(engine, age_s=3600, size=2000)
    young = ended(engine, size=100)
    assert clean_by_settings(engine).removed == 1
    assert left(engine) == [young]
    engine.close()


def test_what_cannot_be_read_is_not_taken_for_old(engine):
    """After a rebuild an unreadable tape has the age of its id."""
    execution_id = ended(engine)
    with open(os.path.join(engine.project.folder(execution_id), "tape"), "r+b") as tape:
        tape.write(b"\0" * 200)
    engine.index.rebuild()
    assert engine.index.latest(Query())[0].state is State.LOST
    assert clean(engine, older_s=600) == Cleaned(0, 0)
    born = engine.index.latest(Query())[0].created_ns
    assert abs(time.time_ns() - born) < 600 * 10**9
