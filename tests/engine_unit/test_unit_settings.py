import os
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput
from tenuto.engine.settings import _KEYS, Settings, load_settings, user_file

GOOD = {
    "wait": ("5m", "wait", 300.0),
    "report.every": ("10s", "report_every", 10.0),
    "on_cancel": ("kill", "on_cancel", "kill"),
    "interrupt.grace": ("1", "interrupt_grace", 1.0),
    "output.quota": ("2M", "output_quota", 2 << 20),
    "output.policy": ("fail", "output_policy", "fail"),
    "output.inline": ("64k", "output_inline", 64 << 10),
    "mcp.output": ("16k", "mcp_output", 16 << 10),
    "retention.age": ("7d", "retention_age", 604800.0),
    "retention.count": ("100", "retention_count", 100),
    "retention.size": ("1G", "retention_size", 1 << 30),
    "limits.memory": ("64M", "code_memory", 64 << 20),
    "keepers.ahead": ("0", "keepers_ahead", 0),
    "deno.ahead": ("3", "deno_ahead", 3),
    "session": ("main", "session", "main"),
    "health.every": ("30s", "health_every", 30.0),
    "sandbox": ("auto", "sandbox", "auto"),
    "sandbox_net": ("loopback", "sandbox_net", "loopback"),
    "runtime.preferred": ("open-code", "runtime_preferred", "open-code"),
    "runtime.order": ("cli, codex,cli", "runtime_order", ("cli", "codex")),
    "parallel.concurrency": ("8", "concurrency", 8),
    "runtime.max_turns": ("50", "max_turns", 50),
    "budget.daily": ("$10", "budget_daily", Decimal(10)),
    "budget.monthly": ("200.50", "budget_monthly", Decimal("200.50")),
    "budget.task": ("0", "budget_task", Decimal(0)),
    "budget.hard": ("true", "budget_hard", True),
    "budget.elicit": ("YES", "budget_elicit", True),
    "permissions": ("edits", "permissions", "edits"),
    "checkpoint.every": ("250ms", "checkpoint_every", 0.25),
    "checkpoint.keep": ("3", "checkpoint_keep", 3),
    "asyncHandoverTimeout": ("45000", "wait", 45.0),
    "executionReportInterval": ("500", "report_every", 0.5),
}
BAD = {
    "wait": ["", "soon", "-1", "nan", "1x"],
    "report.every": ["never", "-1s"],
    "on_cancel": ["", "Kill", "ignore"],
    "interrupt.grace": ["x"],
    "output.quota": ["", "much", "-1", "1.5.2M", "9" * 400],
    "output.policy": ["drop"],
    "output.inline": ["-1k"],
    "mcp.output": ["-1k"],
    "retention.age": ["old"],
    "retention.count": ["", "-1", "1.5", "many", "9" * 5000],
    "retention.size": ["big"],
    "limits.memory": ["", "much", "-1"],
    "keepers.ahead": ["-1", "two"],
    "deno.ahead": ["-1", "two"],
    "session": ["", "a b", "../up", ".x", "x" * 65],
    "health.every": ["often"],
    "sandbox": ["", "on", "Require"],
    "sandbox_net": ["none", "lo"],
    "runtime.preferred": ["", "7", "a b", "../x", "x" * 65],
    "runtime.order": ["", ",", "cli,,codex", "cli codex"],
    "parallel.concurrency": ["0", "-1", "many"],
    "runtime.max_turns": ["0", "-1", "many"],
    "budget.daily": ["", "ten", "-1", "nan", "inf", "1e10", "1,5"],
    "budget.monthly": ["10 dollars"],
    "budget.task": ["$-1"],
    "budget.hard": ["", "maybe", "2"],
    "budget.elicit": ["on?"],
    "permissions": ["", "Ask", "bypass"],
    "checkpoint.every": ["", "soon", "-1s"],
    "checkpoint.keep": ["0", "-1", "some"],
    "asyncHandoverTimeout": ["later"],
    "executionReportInterval": ["-5"],
}
WRONG_TYPES = ["true", "[]", "[1]", "2026-11-15", "07:32:00", "-1", "nan", '"\\u0000"']


@pytest.fixture
def places(tmp_path) -> tuple[Path, Path, dict[str, str]]:
    """The project's root, the user's file, the environment."""
    environ = {"HOME": str(tmp_path / "home")}
    user = Path(user_file(environ))
    user.parent.mkdir(parents=True)
    root = tmp_path / "project"
    root.mkdir()
    return root, user, environ


def variable(key: str) -> str:
    return "TENUTO_" + key.upper().replace(".", "_")


def test_the_defaults_are_the_documented_ones():
    settings = Settings()
    assert (settings.wait, settings.report_every, settings.on_cancel) == (30.0, 60.0, "detach")
    nothing = (settings.retention_age, settings.retention_count, settings.retention_size)
    assert nothing == (None, None, None)
    assert settings.output_quota is None
    assert settings.sandbox == "none"


def test_the_tables_here_name_every_key():
    assert set(GOOD) == set(BAD) == set(_KEYS)
    fields = {field for _, field, _ in GOOD.values()}
    assert fields == set(Settings.__struct_fields__) - {"programs"}


@pytest.mark.parametrize("key", GOOD)
def test_every_key_can_be_set_everywhere_and_the_nearest_wins(places, key):
    root, user, environ = places
    text, field, value = GOOD[key]
    default = getattr(Settings(), field)
    words = {
        "on_cancel": "detach", "output.policy": "hold", "sandbox": "none", "sandbox_net": "on",
        "runtime.preferred": "cli", "runtime.order": "gemini", "permissions": "deny",
        "budget.hard": "false", "budget.elicit": "0",
    }  # fmt: skip
    other = words.get(key, "7")

    settings, sources = load_settings(str(root), environ)
    assert (getattr(settings, field), sources) == (default, [])

    user.write_text(f'"{key}" = "{text}"\n')
    settings, (source,) = load_settings(str(root), environ)
    assert (getattr(settings, field), source.source, source.key) == (value, str(user), key)
    assert source.value == value

    user.write_text(f'"{key}" = "{other}"\n')
    project_file = root / "tenuto.toml"
    project_file.write_text(f'"{key}" = "{text}"\n')
    settings, (source,) = load_settings(str(root), environ)
    assert (getattr(settings, field), source.source) == (value, str(project_file))

    project_file.write_text(f'"{key}" = "{other}"\n')
    environ[variable(key)] = text
    settings, (source,) = load_settings(str(root), environ)
    assert (getattr(settings, field), source.source) == (value, variable(key))

    environ[variable(key)] = other
    settings, (source,) = load_settings(str(root), environ, {key: text})
    assert (getattr(settings, field), source.source) == (value, "the command line")
    settings, _ = load_settings(str(root), environ, {key: None})
    assert getattr(settings, field) != value


@pytest.mark.promise("X3")
def test_the_seeds_names_are_milliseconds(places):
    root, _, environ = places
    (root / "tenuto.toml").write_text("asyncHandoverTimeout = 1500\nexecutionReportInterval = 0\n")
    settings, _ = load_settings(str(root), environ)
    assert (settings.wait, settings.report_every) == (1.5, 0.0)


@pytest.mark.parametrize(("key", "text"), [(key, text) for key in BAD for text in BAD[key]])
def test_a_bad_value_is_named_with_its_key_and_its_place(places, key, text):
    root, user, environ = places
    with pytest.raises(InvalidInput) as caught:
        load_settings(str(root), environ | {variable(key): text})
    assert key in caught.value.message
    assert variable(key) in caught.value.message
    with pytest.raises(InvalidInput):
        load_settings(str(root), environ, {key: text})
    user.write_text(f'"{key}" = "{text}"\n')
    with pytest.raises(InvalidInput) as caught:
        load_settings(str(root), environ)
    assert str(user) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key in GOOD
        for value in WRONG_TYPES
        if value != "true" or not isinstance(GOOD[key][2], bool)  # these take it
    ],
)
def test_a_value_of_the_wrong_type_is_refused(places, key, value):
    root, _, environ = places
    (root / "tenuto.toml").write_text(f'"{key}" = {value}\n')
    with pytest.raises(InvalidInput, match=r"tenuto\.toml"):
        load_settings(str(root), environ)


@given(
    st.sampled_from(sorted(GOOD)), st.text(max_size=20) | st.floats() | st.integers() | st.none()
)
def test_no_flag_raises_anything_but_invalid_input(key, value):
    try:
        settings, _ = load_settings("/nowhere", {}, {key: value})
    except InvalidInput:
        return
    msgspec.json.encode(settings)


def test_tables_and_dotted_keys_mean_the_same(places):
    root, _, environ = places
    file = root / "tenuto.toml"
    file.write_text("[retention]\ncount = 5\nage = '1d'\n[output]\nquota = 1000\n")
    first, _ = load_settings(str(root), environ)
    file.write_text("retention.count = 5\nretention.age = 86400\noutput.quota = '1000'\n")
    second, _ = load_settings(str(root), environ)
    assert first == second
    assert first.retention_count == 5


@pytest.mark.promise("R3", "B2")
def test_lists_amounts_and_flags_as_toml_writes_them(places):
    root, _, environ = places
    (root / "tenuto.toml").write_text(
        "[runtime]\norder = ['cli', 'codex']\n[budget]\ndaily = 10\ntask = 0.1\nhard = false\n"
    )
    settings, _ = load_settings(str(root), environ)
    assert settings.runtime_order == ("cli", "codex")
    # a float is taken as it is written, not as it is stored
    assert (settings.budget_daily, settings.budget_task) == (Decimal(10), Decimal("0.1"))
    assert settings.budget_hard is False


def test_the_tables_of_agents_are_left_to_their_reader(places):
    root, _, environ = places
    (root / "tenuto.toml").write_text("wait = 5\n[tiers.cli]\nfast = 'x'\n[agents]\nme = 3\n")
    settings, sources = load_settings(str(root), environ)
    assert settings.wait == 5.0
    assert [source.key for source in sources] == ["wait"]


def test_programs_come_together_from_both_files(places):
    root, user, environ = places
    user.write_text("[programs]\npython = '/opt/py'\nnode = '/opt/node'\n")
    (root / "tenuto.toml").write_text("[programs]\nnode = './node'\n")
    settings, sources = load_settings(str(root), environ)
    assert settings.programs == {"python": "/opt/py", "node": str(root / "node")}
    assert [source.key for source in sources] == ["programs"]


@pytest.mark.parametrize(
    "content",
    [b"unknown = 1", b"[wait]\nx = 1", b"programs = 'x'", b"a = ", b"\xff", b"[retention]\nweight = 3",
     b"[a.b]\nc = 1", b"wait = 1\nwait = 2"],
)  # fmt: skip
def test_a_file_with_mistakes_is_refused_by_name(places, content):
    root, _, environ = places
    (root / "tenuto.toml").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"tenuto\.toml") as caught:
        load_settings(str(root), environ)
    assert caught.value.hint


def test_an_unknown_flag_is_refused():
    with pytest.raises(InvalidInput, match="'wiat', which is unknown"):
        load_settings("/nowhere", {}, {"wiat": 3})


def test_a_file_that_cannot_be_read_is_told(places):
    root, _, environ = places
    os.mkdir(root / "tenuto.toml")
    with pytest.raises(InvalidInput, match="cannot read"):
        load_settings(str(root), environ)


def test_the_users_file_is_where_xdg_says(tmp_path):
    assert user_file({"XDG_CONFIG_HOME": "/x"}) == "/x/tenuto/config.toml"
    assert user_file({"HOME": "/h"}) == "/h/.config/tenuto/config.toml"
