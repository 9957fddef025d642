from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core.errors import UnknownName
from tenuto.core.selection import LEVELS, ROLES, TABLES, TIERS, Role, choose, infer_type

pytestmark = pytest.mark.promise("R4")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Add input validation to the parser", "feature"),
        ("Design and build the cache layer", "architecture"),
        ("Create a design for the cache", "architecture"),
        ("Add tests for the parser", "test"),
        ("Write unit tests, then fix what they find", "test"),
        ("Fix the failing test", "bugfix"),
        ("the parser CRASHES on empty input", "bugfix"),
        ("Implement the export and add tests and docs", "feature"),
        ("Refactor the parser so that its tests pass", "refactor"),
        ("Update the README", "documentation"),
        ("Add a flag to the test runner", "feature"),
        ("Update the wording of the page", "other"),
        ("prefix every address; no suffixes", "other"),
        ("Make it faster", "feature"),
        ("What does this do?", "other"),
        ("", "other"),
    ],
)
def test_the_type_is_read_from_the_text(text, kind):
    found, word = infer_type(text)
    assert found == kind
    assert choose(text).type == kind
    if word:
        assert all(part in text.lower() for part in word.split(" … "))


@pytest.mark.parametrize(
    ("text", "kind", "files", "score", "complexity", "role", "tier"),
    [
        # the figures that users of the seed system know
        ("x", "documentation", 0, 5, "trivial", "developer", "fast"),
        ("x", "documentation", 3, 10, "simple", "developer", "fast"),
        ("x", "test", 1, 12, "simple", "developer", "fast"),
        ("fix", "bugfix", 1, 20, "moderate", "developer", "main"),
        ("x", "bugfix", 3, 20, "moderate", "developer", "main"),
        ("x", "feature", 4, 35, "complex", "senior", "heavy"),
        ("x", "feature", 5, 35, "complex", "senior", "heavy"),
        ("x", "feature", 6, 40, "complex", "senior", "heavy"),
        ("x", "architecture", 0, 40, "complex", "senior", "heavy"),
        ("Architecture and DESIGN", "other", 0, 45, "complex", "senior", "heavy"),
        ("migrate", "architecture", 0, 52, "architectural", "architect", "heavy"),
        ("add, create, fix, update, implement", "other", 0, 39, "complex", "senior", "heavy"),
        ("add add ADD", "other", 0, 20, "moderate", "developer", "main"),
        ("padding fixture redesigned", "other", 0, 15, "simple", "developer", "fast"),
    ],
)
def test_score_complexity_role_and_tier(text, kind, files, score, complexity, role, tier):
    choice = choose(text, type=kind, files=[f"f{n}" for n in range(files)])
    assert (choice.score, choice.complexity) == (score, complexity)
    assert (choice.role, choice.tier) == (role, tier)
    # the sum in the reason is the score
    total = choice.reason.partition("score ")[2].partition(")")[0]
    named, _, parts = total.partition(" = ")
    assert int(named) == score == sum(int(part.split()[-1]) for part in parts.split(" + "))


@pytest.mark.parametrize(
    ("role", "easy", "hard"),
    [
        ("product", "main", "main"),
        ("architect", "heavy", "heavy"),
        ("senior", "heavy", "heavy"),
        ("developer", "fast", "main"),
        ("reviewer", "heavy", "heavy"),
        ("ops", "main", "main"),
    ],
)
def test_a_role_that_is_named_is_taken_with_its_tier(role, easy, hard):
    assert choose("x", type="test", role=role).tier == easy
    choice = choose("migrate", type="architecture", role=role)
    assert (choice.complexity, choice.role, choice.tier) == ("architectural", role, hard)
    assert f"role {role} (as asked)" in choice.reason


def test_every_role_of_the_seed_is_there():
    assert set(ROLES) == {"product", "architect", "senior", "developer", "reviewer", "ops"}
    assert set(TABLES.types) == {
        "architecture", "feature", "refactor", "bugfix", "test", "documentation", "other",
    }  # fmt: skip
    assert all(role in who.text for role, who in ROLES.items())


def test_a_model_that_is_named_is_taken():
    tier = choose("x", model="heavy")
    assert (tier.tier, tier.model) == ("heavy", "")
    assert "model tier heavy (as asked)" in tier.reason
    model = choose("x", model="gpt-9")
    assert (model.tier, model.model) == ("fast", "gpt-9")
    assert "model gpt-9 (as asked)" in model.reason


@pytest.mark.parametrize(
    ("words", "known"),
    [({"role": "wizard"}, sorted(ROLES)), ({"type": "magic"}, sorted(TABLES.types)), ({"role": ""}, []),
     ({"type": ""}, [])],
)  # fmt: skip
def test_an_unknown_name_is_an_error_that_lists_the_known(words, known):
    with pytest.raises(UnknownName) as caught:
        choose("x", **words)
    assert all(name in caught.value.hint for name in known)
    assert str(*words.values()) in caught.value.message


def test_tables_and_roles_can_be_replaced():
    tables = msgspec.structs.replace(
        TABLES, types={**TABLES.types, "spike": 90}, words={"Quantum": 1}
    )
    roles = ROLES | {"architect": Role("a", tier="fast"), "wizard": Role("w", easy="main")}
    choice = choose("quantum", type="spike", tables=tables, roles=roles)
    assert (choice.score, choice.role, choice.tier) == (91, "architect", "fast")
    assert choose("x", role="wizard", roles=roles).tier == "main"


@given(st.text(), st.lists(st.text(max_size=3), max_size=8))
def test_any_text_gives_the_same_explained_choice_every_time(text, files):
    choice = choose(text, files=files)
    assert choice == choose(text, files=list(reversed(files)))
    assert choice.complexity in LEVELS
    assert choice.tier in TIERS
    for part in (choice.type, choice.complexity, str(choice.score), choice.role, choice.tier):
        assert part in choice.reason
