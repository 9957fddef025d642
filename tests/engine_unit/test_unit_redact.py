import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.engine.redact import Redactor

SECRETS = {
    "OPENAI_API_KEY": "hunter2-hunter2",
    "GITHUB_TOKEN": "tok_abcdefgh",
    "db_password": "correct horse",
    "AWS_SECRET_ACCESS_KEY": "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "SESSION_COOKIE": "cookie-cookie",
    "GOOGLE_CREDENTIALS": '{"private":"x"}',
    "NPM_AUTH": "bmFtZTpwYXNz",
}
PLAIN = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/someone",
    "KEYBOARD_LAYOUT": "en_US_intl",
    "EDITOR_COMMAND": "vim --noplugin",
    "SHORT_TOKEN": "abc",
    "SSH_AUTH_SOCK": "/tmp",
    "TOKENIZERS_PARALLELISM": "false-false",
}
SHAPES = [
    "sk-proj-abcdefghij0123456789",
    "sk-ant-api03-AbCdEfGhIjKlMnOp",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdef",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl",
]
redactor = Redactor(SECRETS | PLAIN)


@pytest.mark.promise("X16")
@pytest.mark.parametrize("name", SECRETS)
def test_the_value_of_a_secret_variable_is_replaced_by_its_name(name):
    text = f"curl -H 'X: {SECRETS[name]}' x{SECRETS[name]}y"
    shown = redactor.text(text)
    assert SECRETS[name] not in shown
    assert shown.count(f"[redacted {name}]") == 2
    assert shown.startswith("curl -H 'X: ")


@pytest.mark.parametrize("name", PLAIN)
def test_other_variables_are_left_alone(name):
    assert redactor.text(f"see {PLAIN[name]}") == f"see {PLAIN[name]}"


@pytest.mark.promise("X16")
@pytest.mark.parametrize("secret", SHAPES)
def test_well_known_keys_are_seen_by_their_shape(secret):
    for text in (secret, f"key={secret}", f'"{secret}"', f"({secret})", f"Bearer {secret}\n"):
        assert secret not in redactor.text(text)
        assert "[redacted]" in redactor.text(text)


@pytest.mark.parametrize(
    "text", ["sk-short", "task-abcdefghijklmnop0123", "ghp_short", "eyJub3Q", "AKIA"]
)
def test_what_only_looks_a_little_like_a_key_is_left_alone(text):
    assert redactor.text(text) == text


def test_a_secret_that_holds_another_is_replaced_whole():
    inner = Redactor({"A_TOKEN": "abcdefgh", "B_TOKEN": "abcdefgh-and-more"})
    assert inner.text("abcdefgh-and-more abcdefgh") == "[redacted B_TOKEN] [redacted A_TOKEN]"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([*SECRETS.values(), *SHAPES, "plain"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner)
    ),
    max_leaves=8,
)


@pytest.mark.promise("X16")
@given(JSON)
def test_no_secret_is_left_anywhere_in_a_document(document):
    shown = repr(redactor.data(document))
    for secret in [*SECRETS.values(), *SHAPES]:
        assert secret not in shown
        assert repr(secret)[1:-1] not in shown


@given(st.text())
def test_any_text_can_be_redacted_and_twice_is_once(text):
    once = redactor.text(text)
    assert redactor.text(once) == once
    assert Redactor({}).text("plain " + "x" * 10) == "plain " + "x" * 10


def test_other_values_stay_as_they_are():
    assert redactor.data({"n": 1.5, "none": None, "b": b"bytes", "t": True}) == {
        "n": 1.5, "none": None, "b": b"bytes", "t": True,
    }  # fmt: skip


def test_a_value_that_is_no_path_at_all_does_not_raise():
    assert Redactor({"A_KEY": "/abc\0defgh"}).text("/abc\0defgh") == "[redacted A_KEY]"
