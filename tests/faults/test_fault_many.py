"""Several engines on one folder at once."""

import json
import threading

import pytest
from fault_help import Forge, Worker, read

from tenuto.core.states import State

ENGINES, EACH = 4, 25


@pytest.mark.promise("X9", "X1", "X11")
@pytest.mark.parametrize("way", ["zygote", "fresh"])
def test_engines_share_a_folder(world, way):
    """Four processes start at once while a fifth lists; nobody is lost, not even for a moment."""
    forge = Forge(world.environ)
    world.before_end(forge.close)
    workers = [Worker(forge, way, f"{world.log}.{n}") for n in range(ENGINES)]
    for worker in workers:
        world.before_end(worker.close)
    each = EACH if way == "zygote" else EACH // 5
    for worker in workers:
        worker.ask({"many": each})
    replies = []
    thread = threading.Thread(
        target=lambda: replies.extend(worker.line.recv(1 << 16) for worker in workers)
    )
    thread.start()
    allowed = {State.QUEUED, State.RUNNING, State.SUCCEEDED}
    with world.fresh() as engine:
        seen = {}
        while thread.is_alive():
            listed = {one.id: one.state for one in engine.list(most=None)}
            assert set(listed.values()) <= allowed
            assert set(seen) <= set(listed), "an execution vanished from the list"
            assert all(listed[one] is state for one, state in seen.items() if state in (
                State.SUCCEEDED,)), "an ended execution changed"  # fmt: skip
            seen = listed
        thread.join()
        ids = [json.loads(reply)["ids"] for reply in replies]
        assert len({one for few in ids for one in few}) == ENGINES * each
        for few in ids:
            assert few == sorted(few)
            for number, execution_id in enumerate(few):
                assert engine.wait(execution_id, 30).state is State.SUCCEEDED
                assert read(engine, execution_id) == b"%d\n" % number
        listed = engine.list(most=None)
        assert {one.id for one in listed} == {one for few in ids for one in few}
        assert {one.state for one in listed} == {State.SUCCEEDED}
