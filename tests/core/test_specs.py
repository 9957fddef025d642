import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput
from tenuto.core.events import Created, decode_event, encode_event
from tenuto.core.specs import Limits, Spec, check_text
from tenuto.keeper.frames import MAX_BODY


@given(st.text(max_size=200))
def test_text_is_taken_whole_or_refused_by_name(text):
    try:
        assert check_text("the code", text) is text
    except InvalidInput as error:
        assert "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
        assert error.message.startswith("the code")
        assert error.hint
    else:
        assert "\0" not in text
        text.encode()


@pytest.mark.parametrize("text", ["a\0b", "\udcff", "\ud83d", "\udc80 file"])
def test_text_that_no_record_can_hold_is_refused(text):
    with pytest.raises(InvalidInput):
        check_text("an argument", text)


@pytest.mark.promise("X1")
@settings(max_examples=12)
@given(st.text(alphabet='\x01"\\\n\u00e9\U0001f600x', max_size=64).filter(len))
def test_whatever_is_accepted_fits_in_frame_0(text):
    most = 5 * 1024 * 1024
    whole = text * (most // len(text.encode()))
    spec = Spec(kind="code", argv=(), cwd="/", code=check_text("the code", whole))
    assert len(encode_event(Created(id="a", spec=spec))) < MAX_BODY
    with pytest.raises(InvalidInput, match="larger than 5 MiB"):
        check_text("the code", text * (most // len(text.encode()) + 1))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SPECS = st.builds(
    Spec,
    kind=st.sampled_from(["code", "command", "task", "step"]),
    argv=st.lists(TEXTS, max_size=4).map(tuple),
    cwd=TEXTS,
    language=st.none() | TEXTS,
    code=st.none() | TEXTS,
    title=TEXTS,
    env_names=st.lists(TEXTS, max_size=3).map(tuple),
    pty=st.booleans(),
    limits=st.builds(
        Limits, memory=st.none() | st.integers(1, 2**60), cpu=st.none() | st.floats(1, 9)
    ),
    deadline=st.none() | st.floats(0.1, 1e9),
    idle=st.none() | st.floats(0.1, 1e9),
    detached=st.booleans(),
    parent=st.none() | TEXTS,
)


@pytest.mark.promise("X1")
@given(SPECS)
def test_a_spec_comes_back_from_frame_0_as_it_was(spec):
    created = decode_event(encode_event(Created(id="x", spec=spec, version="1")))
    assert created == Created(id="x", spec=spec, version="1")


@pytest.mark.promise("X16")
def test_a_spec_has_no_place_for_the_values_of_variables():
    spec = Spec(kind="command", argv=("env",), cwd="/", env_names=("API_KEY",))
    assert set(json.loads(msgspec.json.encode(spec))) == {"kind", "argv", "cwd", "env_names"}
    assert not any("env" in name and name != "env_names" for name in Spec.__struct_fields__)


@given(SPECS)
def test_a_label_is_one_short_line(spec):
    label = spec.label()
    assert len(label) <= 200
    assert "\n" not in label
    assert label == " ".join(label.split())


def test_a_label_is_the_title_else_the_code_else_the_command():
    spec = Spec(kind="code", argv=("python3", "-"), cwd="/", code="x = 1\nx\n", title="count")
    assert spec.label() == "count"
    assert msgspec.structs.replace(spec, title="").label() == "x = 1 x"
    assert msgspec.structs.replace(spec, title="", code=None).label() == "python3 -"
    assert msgspec.structs.replace(spec, title="y" * 300).label() == "y" * 199 + "…"
