"""The index deleted, cut or overwritten, while executions run and other engines have it open."""

import contextlib
import json
import os
import threading

import pytest
from fault_help import Forge, Worker, eventually

from tenuto.core.states import State


def delete(path):
    os.unlink(path)


def delete_all(path):
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def empty(path):
    os.truncate(path, 0)


def empty_all(path):
    for suffix in ("", "-wal"):
        os.truncate(path + suffix, 0)


def cut(path):
    os.truncate(path, os.stat(path).st_size // 2 // 4096 * 4096 + 100)


def garbage(path):
    with open(path, "r+b") as file:
        file.write(os.urandom(os.stat(path).st_size))


def garbage_all(path):
    garbage(path)
    garbage(path + "-wal")


def another_file(path):
    """Somebody puts a file there that is no database."""
    with open(path + ".other", "wb") as file:
        file.write(b"this is not a database\n" * 1000)
    os.replace(path + ".other", path)


DAMAGES = [delete, delete_all, empty, empty_all, cut, garbage, garbage_all, another_file]


@pytest.fixture
def forge(world):
    forge = Forge(world.environ)
    world.before_end(forge.close)
    return forge


@pytest.fixture
def other(world, forge):
    """An engine in another process that has the index open."""
    worker = Worker(forge, "fresh", world.log)
    world.before_end(worker.close)
    assert worker.call({"list": True}) == {"states": {}}
    return worker


def grow(engine, world):
    """Ended and running executions, and an index of more than a few pages."""
    ended = [world.start(engine, ["sh", "-c", f"exit {n}"]) for n in range(3)]
    for execution_id in ended:
        engine.wait(execution_id, 20)
    running = [world.start(engine, ["sleep", "1000"]) for _ in range(2)]
    for execution_id in running:
        world.started(execution_id)
    return dict(zip(ended, ["succeeded", "failed", "failed"], strict=True)) | dict.fromkeys(
        running, "running"
    )


@pytest.mark.promise("D5", "X9", "X17")
@pytest.mark.parametrize("whole", [True, False], ids=["settled", "in the wal"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_damaged_index_is_made_anew(world, other, damage, whole):
    with world.fresh() as engine:
        expected = grow(engine, world)
    if whole:
        with world.fresh() as engine:
            engine.index._database.use(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
    assert other.call({"list": True})["states"] == expected  # it has the index open, and is idle
    damage(str(world.home / "index.db"))
    with world.fresh() as engine:
        assert {one.id: str(one.state) for one in engine.list(most=None)} == expected
        assert other.call({"list": True})["states"] == expected
        one = other.call({"argv": ["true"]})["id"]  # and both go on
        two = world.start(engine, ["true"])
        engine.wait(one, 20)
        engine.wait(two, 20)
        expected |= {one: "succeeded", two: "succeeded"}
        assert {one.id: str(one.state) for one in engine.list(most=None)} == expected
    assert other.call({"list": True})["states"] == expected
    with world.fresh() as engine:
        assert engine.index.check() == ""
        assert engine.index.rebuild() == len(expected)
        assert {one.id: str(one.state) for one in engine.list(most=None)} == expected
        for execution_id, state in expected.items():
            assert str(engine.show(execution_id).state) == state


@pytest.mark.promise("D5", "X9")
@pytest.mark.parametrize("damage", [delete, delete_all, garbage, another_file])
def test_damage_under_load_loses_no_execution(world, forge, damage):
    """Three processes start and list while the index is damaged again and again."""
    workers = [Worker(forge, "zygote", world.log) for _ in range(3)]
    for worker in workers:
        world.before_end(worker.close)
    ids, errors = [], []
    stop = threading.Event()

    def work(worker):
        try:
            while not stop.is_set():
                ids.extend(worker.call({"many": 3})["ids"])
                worker.call({"list": True})
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for _ in range(5):
        before = len(ids)
        eventually(lambda before=before: stop.is_set() or len(ids) > before + 3, patience_s=30)
        with contextlib.suppress(FileNotFoundError):
            damage(str(world.home / "index.db"))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    with world.fresh() as engine:
        for execution_id in ids:
            assert engine.wait(execution_id, 20).state is State.SUCCEEDED
        states = {one.id: one.state for one in engine.list(most=None)}
        assert set(states) == set(ids)
        assert set(states.values()) == {State.SUCCEEDED}
    for worker in workers:
        assert set(worker.call({"list": True})["states"]) == set(ids)


@pytest.mark.promise("D5", "X9")
def test_a_rebuild_among_starts_loses_no_execution(world, forge):
    workers = [Worker(forge, "zygote", world.log) for _ in range(2)]
    for worker in workers:
        world.before_end(worker.close)
        worker.ask({"many": 25})
    replies = []
    thread = threading.Thread(
        target=lambda: replies.extend(worker.line.recv(1 << 16) for worker in workers)
    )
    thread.start()
    world.before_end(thread.join)
    with world.fresh() as engine:
        while thread.is_alive():
            engine.index.rebuild()
            states = {one.state for one in engine.list(most=None)}
            assert states <= {State.QUEUED, State.RUNNING, State.SUCCEEDED}
        thread.join()
        ids = [one for reply in replies for one in json.loads(reply)["ids"]]
        for execution_id in ids:
            assert engine.wait(execution_id, 20).state is State.SUCCEEDED
        assert {one.id for one in engine.list(most=None)} == set(ids)
        assert len(ids) == 50
