from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput, UnknownName
from tenuto.engine.skills import SKILL_MOST, Skills, front_matter, skills_of

pytestmark = pytest.mark.promise("R2")


def write(path: Path, name: str = "", body: str = "Do it so.", more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"name: {name}\n" if name else ""
    path.write_text(f"---\n{head}description: about it\n{more}---\n\n{body}\n")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


@pytest.fixture
def skills(root: Path, tmp_path: Path) -> Skills:
    return skills_of(str(root), {"HOME": str(tmp_path / "home")}, [str(tmp_path / "shared")])


def test_skills_are_found_everywhere_and_the_nearest_wins(root, tmp_path, skills):
    user = tmp_path / "home" / ".config" / "tenuto" / "skills"
    write(user / "one.md", body="the user's")
    write(user / "two.md", body="the user's")
    write(user / "only.md", body="the user's")
    write(root / ".claude" / "skills" / "one" / "SKILL.md", "one", "claude's")
    write(root / ".claude" / "skills" / "two" / "SKILL.md", "two", "claude's")
    write(root / "tenuto" / "skills" / "one.md", body="the project's")
    write(tmp_path / "shared" / "four.md", body="shared")
    assert {skill.name: skill.text for skill in skills.all()[0]} == {
        "one": "the project's\n",
        "two": "claude's\n",
        "only": "the user's\n",
        "four": "shared\n",
    }
    assert skills.get("two").text == "claude's\n"


def test_what_stands_in_the_front_matter(root, skills):
    write(
        root / "tenuto" / "skills" / "file.md",
        "real-name",
        "# Heading\n\n---\n\nbelow a rule",
        "triggers: [schema, 'data base']\nlicense: MIT\nmetadata:\n  version: 1\n  deep:\n    x: y\n",
    )
    (skill,) = skills.all()[0]
    assert (skill.name, skill.description) == ("real-name", "about it")
    assert skill.triggers == ("schema", "data base")
    assert skill.text == "# Heading\n\n---\n\nbelow a rule\n"


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("k: plain text: with colon", "plain text: with colon"),
        ('k: "quoted"', "quoted"),
        ("k: 'quoted'", "quoted"),
        ("k: goes on\n  here", "goes on here"),
        ("k:\n  below", "below"),
        ("k: >-\n  folded\n  text", "folded text"),
        ("k: |\n  kept\n  apart", "kept\napart"),
        ("k: [a, 'b c', \"d\"]", ["a", "b c", "d"]),
        ("k: [a,\n  b]", ["a", "b"]),
        ("k: []", []),
        ("k:\n  - a\n  - 'b'", ["a", "b"]),
        ("k:\n- a\n- b", ["a", "b"]),
        ("k:", ""),
        ("# comment\n\nk: v", "v"),
        ("k: v\r", "v"),
    ],
)
def test_values_as_people_write_them(lines, value):
    fields, body = front_matter(f"---\n{lines}\n---\ntext", "f")
    assert (fields["k"], body) == (value, "text")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no front matter", 1),
        ("", 1),
        ("---\nname: x\n", 2),
        ("---\nname x\n---\nt", 2),
        ("---\nname: x\n\nname: y\n---\nt", 4),
        ("---\na: b\n: c\n---\nt", 3),
        ("---\na: [b\n---\nt", 2),
    ],
)
def test_a_mistake_is_told_with_file_and_line(text, line):
    with pytest.raises(InvalidInput, match=rf"f\.md, line {line}:"):
        front_matter(text, "f.md")


def test_a_broken_file_hurts_only_who_asks_for_it(root, tmp_path, skills):
    write(root / "tenuto" / "skills" / "good.md")
    (root / "tenuto" / "skills" / "bad.md").write_text("---\nname bad\n---\n")
    write(tmp_path / "home" / ".config" / "tenuto" / "skills" / "bad.md", body="another")
    assert skills.get("good").text
    _, (problem,) = skills.all()
    assert problem.name == "bad"
    assert "line 2" in problem.why
    # the user's one of that name is not what this project means
    with pytest.raises(InvalidInput, match=r"bad\.md, line 2"):
        skills.get("bad")


@pytest.mark.promise("R4")
def test_an_unknown_skill_lists_the_known(root, skills):
    with pytest.raises(UnknownName, match="there are none"):
        skills.get("x")
    write(root / "tenuto" / "skills" / "good.md")
    (root / "tenuto" / "skills" / "README.md").write_text("about these skills")
    with pytest.raises(UnknownName) as caught:
        skills.get("../good")
    assert caught.value.hint == "known: good"
    assert skills.all()[1] == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"---\nname: ../x\n---\ntext", "cannot be one"),
        (b"---\nname: [a]\n---\ntext", "is a list"),
        (b"---\nname: x\n---\n \n", "no text"),
        (b"\xff\xfe", "not UTF-8"),
        (b"---\nname: x\n---\n" + b"y" * SKILL_MOST, "larger than"),
    ],
)
def test_what_is_no_skill_is_told(root, skills, content, why):
    (root / "tenuto" / "skills").mkdir(parents=True)
    (root / "tenuto" / "skills" / "odd.md").write_bytes(content)
    with pytest.raises(InvalidInput, match=why):
        skills.get("odd")


def test_links_that_leave_the_folder_are_refused(root, tmp_path, skills):
    folder = root / "tenuto" / "skills"
    write(folder / "inside.md", "inside")
    secret = write(tmp_path / "outside" / "SKILL.md", body="secret")
    (folder / "alias.md").symlink_to(folder / "inside.md")
    (folder / "leak.md").symlink_to(secret)
    (folder / "leaks").symlink_to(secret.parent)
    (folder / "loop.md").symlink_to(folder / "loop.md")
    for name in ("leak", "leaks"):
        with pytest.raises(InvalidInput, match="leads out"):
            skills.get(name)
    with pytest.raises(InvalidInput, match="cannot read"):
        skills.get("loop")
    assert [skill.name for skill in skills.all()[0]] == ["inside"]


def test_a_projects_folder_that_is_a_link_to_elsewhere_is_not_looked_in(root, tmp_path, skills):
    write(tmp_path / "outside" / "a.md")
    (root / "tenuto").mkdir()
    (root / "tenuto" / "skills").symlink_to(tmp_path / "outside")
    with pytest.raises(UnknownName):
        skills.get("a")


def test_a_pipe_or_a_folder_among_them_is_never_waited_for(root, skills):
    folder = root / "tenuto" / "skills"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.md")
    (folder / "folder.md").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InvalidInput, match=r"no regular file|it is a folder"):
            skills.get(name)


def test_triggers_are_whole_words_of_the_task(root, skills):
    write(root / "tenuto" / "skills" / "db.md", more="triggers: schema, c++\n")
    write(root / "tenuto" / "skills" / "ui.md", more="triggers:\n  - button\n")
    write(root / "tenuto" / "skills" / "none.md")
    assert [skill.name for skill in skills.triggered("Change the SCHEMA, please")] == ["db"]
    assert [skill.name for skill in skills.triggered("c++ and a button")] == ["db", "ui"]
    assert skills.triggered("schemas and buttons") == []


@given(st.text())
def test_any_text_is_front_matter_or_a_mistake(text):
    for whole in (text, f"---\n{text}\n---\nbody"):
        try:
            fields, _ = front_matter(whole, "f.md")
        except InvalidInput as error:
            assert "f.md, line" in error.message
        else:
            assert all(isinstance(value, (str, list)) for value in fields.values())
