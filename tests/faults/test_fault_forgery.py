"""A program prints what looks like frames, and the tape is damaged right before them."""

import json
import os

import pytest
from fault_help import eventually, read

from tenuto.core.states import State
from tenuto.keeper import frames
from tenuto.stores.tape import TapeReader, is_kept

FORGED = b"FORGED"


def forged_frames():
    """Frames of the right layout under magics that the program made up, with all kinds of numbers."""
    data = b""
    ended = json.dumps({"type": "ended", "state": "failed", "reason": "FORGED"}).encode()
    for seq in (1, 2, 3, 4, 5, 6, 10, 1000, 2**63):
        magic = os.urandom(8)
        for stream, body in ((frames.OUT, FORGED), (frames.EVENT, ended)):
            header, trailer = frames.pack(magic, stream, seq, 1, body)
            data += header + body + trailer
    return frames.preamble(os.urandom(8)) + data


@pytest.fixture
def tape(world):
    """An execution that printed frames; returns the engine, its id, and a way to damage its tape."""
    engine = world.engine()
    path = world.folder / "frames"
    path.write_bytes(forged_frames())
    argv = ["sh", "-c", f"echo first; sleep 0.05; cat {path}; sleep 0.05; echo last"]
    execution_id = world.start(engine, argv)
    assert engine.wait(execution_id, 20).state is State.SUCCEEDED
    assert FORGED in read(engine, execution_id)
    eventually(lambda: not is_kept(engine.project.folder(execution_id)))
    return engine, execution_id


def at(engine, execution_id):
    with TapeReader(engine.project.folder(execution_id)) as reader:
        return list(reader.frames())


def flip(engine, execution_id, *offsets):
    with open(os.path.join(engine.project.folder(execution_id), "tape"), "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))


def nothing_forged(engine, execution_id, state):
    before = at(engine, execution_id)
    assert engine.show(execution_id).state is state
    assert [one.state for one in engine.list()] == [state]
    texts = b"".join(chunk.data for chunk in engine.logs(execution_id))
    assert FORGED not in texts
    assert b"FORGED" not in b"".join(frame.body for frame in before if frame.stream == frames.EVENT)
    followed = b"".join(chunk.data for chunk in engine.follow(execution_id))
    assert followed == texts
    snapshot = engine.wait(execution_id, 1)
    assert FORGED.decode() not in snapshot.output
    repaired = any(b'"type":"repaired"' in f.body for f in at(engine, execution_id))
    assert snapshot.damaged > 0 or repaired, "damage is never passed over in silence"
    assert "FORGED" not in snapshot.reason
    return texts


HOLDER_PARTS = {
    "magic": 0,
    "version and stream": 9,
    "length": 12,
    "sequence number": 16,
    "time": 24,
    "first byte of the body": frames.HEADER.size,
}


@pytest.mark.promise("D5", "X16")
@pytest.mark.parametrize("part", HOLDER_PARTS)
def test_damage_right_before_printed_frames_forges_nothing(tape, part):
    engine, execution_id = tape
    holder = next(f for f in at(engine, execution_id) if FORGED in f.body)
    flip(engine, execution_id, holder.offset + HOLDER_PARTS[part])
    texts = nothing_forged(engine, execution_id, State.SUCCEEDED)
    assert texts == b"first\nlast\n"


@pytest.mark.promise("D5", "X16")
def test_damage_to_everything_around_printed_frames_forges_nothing(tape):
    engine, execution_id = tape
    all_frames = at(engine, execution_id)
    holder = next(f for f in all_frames if FORGED in f.body)
    after = [f.offset for f in all_frames if f.seq > holder.seq]
    flip(engine, execution_id, holder.offset, holder.end - 1, *after)  # its exit record too
    nothing_forged(engine, execution_id, State.LOST)


@pytest.mark.promise("D5", "X16")
def test_a_lost_preamble_forges_nothing(tape):
    engine, execution_id = tape
    holder = next(f for f in at(engine, execution_id) if FORGED in f.body)
    flip(engine, execution_id, 8, 8 + 24, holder.offset)
    nothing_forged(engine, execution_id, State.SUCCEEDED)


@pytest.mark.promise("D5")
def test_a_tape_without_preamble_and_first_frame_is_lost_not_invented(tape):
    engine, execution_id = tape
    first = at(engine, execution_id)[0]
    flip(engine, execution_id, 8, 8 + 24, first.offset, first.offset + frames.HEADER.size)
    assert engine.index.rebuild() == 1
    assert [one.state for one in engine.list()] == [State.LOST]
    assert list(engine.logs(execution_id)) == []
    assert "FORGED" not in engine.show(execution_id).reason
