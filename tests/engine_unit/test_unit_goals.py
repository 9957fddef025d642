import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput
from tenuto.engine import goals
from tenuto.engine.goals import Until
from tenuto.keeper.frames import ERR, OUT, Frame


def frame(body: bytes, stream: int = OUT) -> Frame:
    return Frame(0, stream, 0, 0, body)


def first_match(until: Until, pieces: list[bytes]) -> tuple[int, str] | None:
    for number, piece in enumerate(pieces):
        found = until.match(frame(piece))
        if found is not None:
            return number, found
    return None


@pytest.mark.promise("X6")
@given(
    st.text(alphabet="ab\u00e9\n.*", min_size=1, max_size=4).filter(lambda t: t[0] != "/"),
    st.binary(max_size=6),
    st.binary(max_size=6),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_a_text_is_found_across_any_chunks_and_exactly_when_it_is_whole(text, before, after, cuts):
    wanted = text.encode()
    data = before + wanted + after
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    end = data.find(wanted) + len(wanted)
    found = first_match(Until(text), pieces)
    assert found is not None
    assert found[1] == text
    assert places[found[0]] < end <= places[found[0] + 1]


@pytest.mark.promise("X6")
@given(st.lists(st.sampled_from([b"ab", b"ba", b"port 80", b"80\n", b"x", b""]), max_size=8))
def test_a_regex_is_found_across_chunks(pieces):
    data = b"".join(pieces)
    found = first_match(Until(r"/port (\d{4})/"), pieces)
    expected = re.search(rb"port \d{4}", data)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found[1].encode() == expected.group()


@pytest.mark.promise("X6")
def test_byte_by_byte_is_enough():
    assert first_match(Until("ready!"), [bytes([one]) for one in b"... ready! ..."]) == (
        9,
        "ready!",
    )
    letters = [bytes([one]) for one in "größer".encode()]
    assert first_match(Until("öß"), letters) == (5, "öß")


def test_the_two_streams_are_not_mixed():
    until = Until("abcd")
    assert until.match(frame(b"ab", OUT)) is None
    assert until.match(frame(b"cd", ERR)) is None
    assert until.match(frame(b"cd", OUT)) == "abcd"


def test_a_text_is_taken_literally():
    assert Until("a.c").match(frame(b"abc")) is None
    assert Until("/").match(frame(b"a/b")) == "/"
    assert Until("//").match(frame(b"http://")) == "//"
    assert Until("/usr/bin").match(frame(b"in /usr/bin")) == "/usr/bin"


def test_little_is_kept_however_much_is_printed():
    until = Until("needle")
    for _ in range(50):
        assert until.match(frame(b"x" * 100_000)) is None
        assert len(until._tails[OUT]) < 6
    regex = Until("/needle/")
    for _ in range(50):
        assert regex.match(frame(b"x" * 100_000)) is None
    assert len(regex._tails[OUT]) <= goals._LOOK_BACK


@pytest.mark.parametrize(
    "wanted",
    ["", "/(/", "/[/", "/x{99999999999999999999}/", "/*/", "\ud800", "/\ud800/"],
)
def test_what_cannot_be_waited_for_is_invalid_input(wanted):
    with pytest.raises(InvalidInput):
        Until(wanted)


@given(
    st.text(max_size=20)
    | st.text(alphabet="/()[]{}?*+\\^$|.aL0123456789,:<>=!P", max_size=15).map("/{}/".format)
)
@example("/" + "(" * 5000 + ")" * 5000 + "/")
@example("/(?<=a*)b/")
@example("/[[a]/")
def test_no_text_raises_anything_but_invalid_input(wanted):
    try:
        until = Until(wanted)
    except InvalidInput as error:
        assert error.message
    else:
        until.match(frame(b"some output\n"))
