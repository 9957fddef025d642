"""Everything that a keeper serves, asked of one keeper by today's clients."""

import pytest
from fault_help import read, settled

from tenuto.core.errors import NotRunning
from tenuto.core.states import State
from tenuto.engine.work import Options
from tenuto.stores.tape import TapeReader

PROGRAM = (
    "trap 'echo signalled' USR1; echo begun; read a; echo got $a; while ! read b; do :; done; "
    "(setsid sleep 1000 &); echo got $b; exit 7"
)


def every_verb(world, engine, remove=lambda: None):
    """Drive one execution through everything a keeper serves; `remove` happens in the middle."""
    execution_id = world.start(engine, ["sh", "-c", PROGRAM])
    assert engine.wait(execution_id, 20, until="begun").matched == "begun"
    other = world.start(engine, ["cat"], pty=True)
    third, sock = engine.start(engine.command(["sleep", "1000"], Options()))
    sock.close()
    fourth = world.start(engine, ["sleep", "1000"], deadline=0.5)
    code, sock = engine.start(engine.code("x = input()\nprint(x)\nx * 2", "python", Options()))
    sock.close()
    remove()
    assert engine.wait(execution_id, 20).needs_input
    assert engine.send(execution_id, b"one\n") == "delivered"
    assert engine.wait(execution_id, 20, until="got one").matched
    engine.kill(execution_id, "USR1")
    assert engine.wait(execution_id, 20, until="signalled").matched
    assert engine.clear(execution_id).running
    assert b"begun" not in read(engine, execution_id)
    engine.send(execution_id, b"two\n", eof=True)
    snapshot = engine.wait(execution_id, 20)
    assert (snapshot.state, snapshot.exit_code) == (State.FAILED, 7)
    assert b"got two" in read(engine, execution_id)
    assert len(snapshot.left_behind) == 1
    engine.kill(execution_id)  # what it left
    assert settled(engine, execution_id).left_behind == ()
    with pytest.raises(NotRunning):
        engine.send(execution_id, b"three\n")
    # a terminal
    engine.resize(other, 50, 100)
    engine.send(other, b"words\n")
    assert engine.wait(other, 20, until="words").matched
    assert engine.interrupt(other).state is State.INTERRUPTED
    # no output, and a wait that gives up
    assert engine.wait(third, 0).handed_over
    assert engine.show(third).is_async
    assert engine.kill(third).state is State.KILLED
    # a deadline
    assert engine.wait(fourth, 20).reason == "deadline"
    # code
    engine.send(code, b"ab\n")
    snapshot = engine.wait(code, 20)
    while snapshot.running:
        snapshot = engine.wait(code, 20, after=snapshot.next_seq)
    assert (snapshot.state, snapshot.value) == (State.SUCCEEDED, "abab")
    for one in (execution_id, other, third, fourth, code):
        settled(engine, one)
        faults = [e for e in events(engine, one) if b'"faulted"' in e]
        assert not faults
    return execution_id


def events(engine, execution_id):
    with TapeReader(engine.project.folder(execution_id)) as reader:
        return [frame.body for frame in reader.events()]
