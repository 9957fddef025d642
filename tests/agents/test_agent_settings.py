from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tenuto.core.errors import InvalidInput
from tenuto.core.selection import choose
from tenuto.engine.agent_settings import AgentSettings, Models, describe, load_agent_settings
from tenuto.engine.settings import AGENT_TABLES, load_settings


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    user = tmp_path / "config" / "tenuto" / "config.toml"
    user.parent.mkdir(parents=True)
    root = tmp_path / "project"
    root.mkdir()
    return root / "tenuto.toml", user, {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def load(places, project: str = "", user: str = "") -> AgentSettings:
    project_file, user_file, environ = places
    project_file.write_text(project)
    user_file.write_text(user)
    load_settings(str(project_file.parent), environ)  # leaves these tables alone
    return load_agent_settings(str(project_file.parent), environ)[0]


@pytest.mark.promise("R4", "B1")
def test_the_defaults_are_the_documented_ones(places):
    settings = load(places)
    assert settings == AgentSettings()
    assert settings.tiers["claude-code"] == Models("haiku", "sonnet", "opus")
    assert settings.tiers["cli"].main == "anthropic:claude-sonnet-4-5"
    assert settings.tiers["open-code"].heavy == "anthropic/claude-opus-4-5"
    assert settings.tiers["codex"] == settings.tiers["gemini"] == Models()
    assert settings.prices == {
        "opus": (15, 75), "sonnet": (3, 15), "haiku": (Decimal("0.25"), Decimal("1.25")),
    }  # fmt: skip


@pytest.mark.promise("R4")
def test_the_model_of_a_choice_is_named_as_the_runtime_does(places):
    settings = load(places, "[tiers.codex]\nheavy = 'gpt-big'\n")
    heavy, main = choose("x", model="heavy"), choose("x", model="main")
    assert settings.model("claude-code", heavy) == "opus"
    assert settings.model("cli", main) == "anthropic:claude-sonnet-4-5"
    assert settings.model("codex", heavy) == "gpt-big"
    assert settings.model("codex", main) == settings.model("unheard-of", main) == ""
    # a model that was asked for is never replaced by a runtime's default
    named, opus = choose("x", model="gpt-9"), choose("x", model="opus")
    assert settings.model("cli", named) == settings.model("gemini", named) == "gpt-9"
    assert settings.model("claude-code", opus) == settings.model("gemini", opus) == "opus"
    assert settings.model("open-code", opus) == "anthropic/claude-opus-4-5"


def test_tables_of_both_files_come_together_and_the_project_wins(places):
    settings = load(
        places,
        "[tiers.cli]\nfast = 'p'\n[agents]\nmine = ['./agent', '--acp']\n[skills]\npaths = ['more']\n"
        "[providers.ollama]\nbase_url = 'http://127.0.0.1:9/v1/'\n",
        "[tiers.cli]\nfast = 'u'\nheavy = 'u'\n[agents]\nmine = ['u']\nyours = ['gemini', '--acp']\n"
        "[skills]\npaths = ['/shared']\n[prices]\nopus = [1, '2.50']\n'my-model' = [0, 0.1]\n",
    )  # fmt: skip
    root = str(places[0].parent)
    assert settings.tiers["cli"] == Models("p", "anthropic:claude-sonnet-4-5", "u")
    assert settings.agents == {
        "mine": (os.path.join(root, "agent"), "--acp"), "yours": ("gemini", "--acp"),
    }  # fmt: skip
    assert settings.skill_paths == (os.path.join(root, "more"), "/shared")
    assert settings.providers == {"ollama": "http://127.0.0.1:9/v1"}
    assert settings.prices["opus"] == (1, Decimal("2.50"))
    assert settings.prices["my-model"] == (0, Decimal("0.1"))
    assert settings.prices["haiku"] == (Decimal("0.25"), Decimal("1.25"))


@pytest.mark.promise("R4")
def test_roles_can_be_changed_and_added(places):
    settings = load(
        places,
        "[roles.developer]\ntier = 'heavy'\n[roles.poet]\nskills = ['rhyme']\n"
        "[roles.ops]\ntext = 'You deploy.'\neasy = 'fast'\n",
    )
    roles = settings.roles
    assert (roles["developer"].tier, roles["developer"].easy) == ("heavy", None)
    assert "implementing" in roles["developer"].text
    assert (roles["poet"].text, roles["poet"].skills) == ("You are a poet agent.", ("rhyme",))
    assert (roles["ops"].text, roles["ops"].tier, roles["ops"].easy) == (
        "You deploy.",
        "main",
        "fast",
    )
    assert choose("x", roles=roles).tier == "heavy"
    assert choose("x", role="poet", roles=roles).role == "poet"


@pytest.mark.promise("R4")
def test_the_figures_of_the_selection_can_be_changed(places):
    settings = load(
        places,
        "[selection]\nmany_files = 90\n[selection.types]\nspike = 60\n[selection.words]\nkernel = 30\n"
        "[selection.signs]\nspike = ['explore']\n[selection.roles]\narchitectural = 'senior'\n"
        "[selection.levels]\ncomplex = 30\n[selection.files]\n1 = 7\n",
    )
    tables = settings.selection
    assert choose("Explore it", tables=tables).role == "senior"
    assert choose("x", tables=tables, files="a").score == 22
    assert choose("x", tables=tables, files="abcdef").score == 105
    assert choose("x", tables=tables, files="abc").score == 20  # what was not changed is as before
    choice = choose("the kernel", tables=tables)
    assert (choice.score, choice.complexity) == (45, "complex")
    assert choose("Fix it").score == 18


@pytest.mark.promise("R1")
def test_users_own_parts_are_named_by_module(places):
    settings = load(
        places, "[runners]\nmine = 'my_pkg.runners:Mine'\n[strategies]\nswarm = 'my:swarm'\n"
    )
    assert settings.runners == {"mine": "my_pkg.runners:Mine"}
    assert settings.strategies == {"swarm": "my:swarm"}


MISTAKES = [
    ("tiers = 3", "tiers"),
    ("[tiers]\ncli = 'x'", "tiers.cli"),
    ("[tiers.cli]\nslow = 'x'", "slow"),
    ("[tiers.cli]\nfast = 3", "tiers.cli"),
    ("[prices]\nopus = 3", "prices.opus"),
    ("[prices]\nopus = [1]", "prices.opus"),
    ("[prices]\nopus = [-1, 2]", "prices.opus"),
    ("[prices]\nopus = ['a', 2]", "prices.opus"),
    ("[roles.ops]\nmodel = 'x'", "model"),
    ("[roles.ops]\ntier = 'huge'", "roles.ops"),
    ("[roles.ops]\ntext = 3", "roles.ops"),
    ("[roles]\nops = 'x'", "roles.ops"),
    ("[roles.'a b']\ntext = 'x'", "roles.a b"),
    ("[agents]\nx = 'codex'", "agents.x"),
    ("[agents]\nx = []", "agents.x"),
    ("[agents]\nx = ['']", "agents.x"),
    ("[agents]\nx = [1]", "agents.x"),
    ("[runners]\nx = 'no colon'", "runners.x"),
    ("[runners]\nx = 'a:'", "runners.x"),
    ("[strategies]\nx = 3", "strategies.x"),
    ("[strategies]\nx = ':f'", "strategies.x"),
    ("[skills]\npaths = 'x'", "skills.paths"),
    ("[skills]\nfolders = []", "skills.folders"),
    ("[providers.acme]\nbase_url = 'http://x'", "providers.acme"),
    ("[providers.ollama]\nbase_url = 'ftp://x'", "providers.ollama"),
    ("[providers.ollama]\nurl = 'http://x'", "providers.ollama"),
    ("[providers.ollama]", "providers.ollama"),
    ("[selection]\nx = 3", "selection.x"),
    ("[selection]\ntypes = 3", "selection.types"),
    ("[selection.types]\nfeature = 'x'", "selection.types"),
    ("[selection.levels]\nhuge = 3", "selection.levels"),
    ("[selection.roles]\nsimple = 'wizard'", "wizard"),
    ("[selection.signs]\nmagic = ['x']", "magic"),
    ("[selection.verbs]\ndo = 'magic'", "magic"),
    ("[selection.files]\nmany = 3", "selection.files"),
]


@pytest.mark.parametrize(("content", "text"), MISTAKES)
def test_a_mistake_is_named_with_its_key_and_its_file(places, content, text):
    with pytest.raises(InvalidInput, match=r"tenuto\.toml") as caught:
        load(places, content)
    assert text in caught.value.message
    assert caught.value.hint


def test_every_table_has_a_test_of_its_mistakes():
    assert {
        content.lstrip("[").split("]")[0].split(".")[0].split(" ")[0] for content, _ in MISTAKES
    } == set(AGENT_TABLES)


def test_the_example_in_the_manual_can_be_used(places):
    manual = Path(__file__).parents[2] / "docs" / "settings.md"
    examples = re.findall(r"```toml\n(.*?)```", manual.read_text(), re.DOTALL)
    assert len(examples) == 2
    settings = load(places, examples[1])
    assert {table for table in AGENT_TABLES if f"[{table}" not in examples[1]} == set()
    assert choose("Explore it", tables=settings.selection, roles=settings.roles).type == "spike"


@pytest.mark.promise("X17")
def test_what_doctor_is_told(places):
    project_file, _, environ = places
    project_file.write_text("[tiers.cli]\nfast = 'x'\n[agents]\nmine = ['m']\n")
    rows = {
        one.key: one for one in describe(*load_agent_settings(str(project_file.parent), environ))
    }
    assert "fast x, main anthropic:" in rows["tiers.cli"].value
    assert rows["tiers.cli"].source == rows["agents.mine"].source == str(project_file)
    assert (rows["tiers.codex"].source, rows["prices.opus"].source) == ("default", "default")


def test_doctor_shows_them(folder):
    (folder / "tenuto.toml").write_text(
        "[budget]\ndaily = 2.5\n[parallel]\nconcurrency = 9\n[tiers.cli]\nfast = 'x'\n"
    )
    done = subprocess.run(["tenuto", "doctor", "--json"], capture_output=True, check=False)
    rows = {one["name"]: one for one in json.loads(done.stdout)["settings"]}
    assert (rows["budget_daily"]["value"], rows["concurrency"]["value"]) == ("2.5", 9)
    assert "tenuto.toml" in rows["concurrency"]["source"]
    assert "fast x" in rows["tiers.cli"]["value"]


def test_the_command_line_starts_without_them():
    code = (
        "import sys, tenuto.cli.main, tenuto.engine.settings, tenuto.engine.blocking\n"
        "print([m for m in sys.modules if m in ("
        "'tenuto.engine.agent_settings', 'tenuto.core.selection', 'tomllib', 'tenuto.core.plan')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
