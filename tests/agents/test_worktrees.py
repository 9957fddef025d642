"""Real git: every test has a repository of its own."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tenuto.core.errors import WorktreeFailed
from tenuto.core.ids import new_id, short
from tenuto.engine.worktrees import Worktrees

pytestmark = pytest.mark.promise("G3")


def git(at: Path, *words: str) -> str:
    names = ("-c", "user.name=Me", "-c", "user.email=me@here")
    done = subprocess.run(
        ["git", *names, *words], cwd=at, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no identity of a user is there
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    place = tmp_path / "repo"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main")
    (place / "a.txt").write_text("one\n")
    (place / "sub").mkdir()
    (place / "sub" / "b.txt").write_text("b\n")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "-m", "first")
    return place


@pytest.fixture
def trees(repo: Path, tmp_path: Path) -> Worktrees:
    return Worktrees(str(repo), str(tmp_path / "trees"), new_id())


def state(repo: Path) -> tuple[str, str, str]:
    return git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain"), git(repo, "branch")


def test_a_step_works_in_its_own_checkout_and_is_committed_on_its_branch(repo, tmp_path):
    task = new_id()
    trees = Worktrees(str(repo / "sub"), str(tmp_path / "trees"), task)
    (repo / "a.txt").write_text("of the user\n")
    head, status, _ = state(repo)
    tree = trees.add("build")
    assert tree.branch == f"tenuto/{short(task)}/build"
    assert tree.cwd == os.path.join(tree.path, "sub")
    assert Path(tree.path, "a.txt").read_text() == "one\n"
    assert trees.uncommitted() == ["a.txt"]
    Path(tree.cwd, "new.txt").write_text("new\n")
    os.unlink(os.path.join(tree.path, "a.txt"))
    assert trees.commit(tree, "Build it") is True
    assert git(repo, "show", "--stat", "--format=%an %s", tree.branch).split("\n")[0] == (
        "Tenuto Build it"
    )
    assert git(repo, "diff", "--name-status", "main", tree.branch) == "D\ta.txt\nA\tsub/new.txt"
    assert (head, status) == state(repo)[:2]
    assert trees.commit(tree, "again") is True  # it still has changes of its own
    assert git(repo, "rev-list", "--count", f"main..{tree.branch}") == "1"


def test_a_step_that_changes_nothing_says_so(trees):
    tree = trees.add("idle")
    assert trees.commit(tree, "nothing") is False


def test_a_worktree_begins_at_the_head_of_now(repo, trees):
    (repo / "later.txt").write_text("later\n")
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "-m", "later")
    assert os.path.exists(os.path.join(trees.add("s").path, "later.txt"))


def test_a_step_has_the_work_of_those_it_depends_on(repo, trees):
    for name in ("left", "right"):
        tree = trees.add(name)
        Path(tree.path, f"{name}.txt").write_text(name)
        trees.commit(tree, name)
    both = trees.add("both", after=["left", "right"])
    assert sorted(os.listdir(both.path)) == [".git", "a.txt", "left.txt", "right.txt", "sub"]
    assert trees.commit(both, "nothing of its own") is False
    assert git(repo, "status", "--porcelain") == ""


def test_steps_that_changed_the_same_places_are_told_and_nothing_is_lost(repo, trees):
    for name in ("left", "right"):
        tree = trees.add(name)
        Path(tree.path, "a.txt").write_text(name)
        trees.commit(tree, name)
    with pytest.raises(WorktreeFailed, match=r"a\.txt"):
        trees.add("both", after=["left", "right"])
    assert trees.branch_of("both") not in git(repo, "branch", "--format=%(refname:short)").split()
    assert {trees.branch_of("left"), trees.branch_of("right")} < set(
        git(repo, "branch", "--format=%(refname:short)").split()
    )


def test_merging_in_order_brings_all_into_the_users_branch_and_tidies_up(repo, trees, tmp_path):
    (repo / "mine.txt").write_text("untracked, and in nobody's way")
    first = trees.add("first")
    Path(first.path, "a.txt").write_text("first\n")
    trees.commit(first, "first")
    second = trees.add("second", after=["first"])
    Path(second.path, "a.txt").write_text("first\nsecond\n")
    trees.commit(second, "second")
    other = trees.add("other")
    Path(other.path, "other.txt").write_text("other\n")
    trees.commit(other, "other")
    merged = trees.merge([first, second, other])
    assert [(one.step, one.ok, one.why) for one in merged] == [
        ("first", True, ""), ("second", True, ""), ("other", True, ""),
    ]  # fmt: skip
    assert (repo / "a.txt").read_text() == "first\nsecond\n"
    assert (repo / "other.txt").read_text() == "other\n"
    assert git(repo, "branch", "--format=%(refname:short)") == "main"
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert git(repo, "status", "--porcelain") == "?? mine.txt"
    trees.tidy()
    assert not (tmp_path / "trees").exists()


def test_a_conflict_leaves_the_checkout_as_it_was_and_keeps_the_work(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "a.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    fine = trees.add("fine")
    Path(fine.path, "fine.txt").write_text("fine\n")
    trees.commit(fine, "fine")
    (repo / "a.txt").write_text("user\n")
    git(repo, "commit", "--quiet", "-a", "-m", "user")
    before = state(repo)
    (merged,) = trees.merge([tree])
    assert (merged.ok, merged.conflicts) == (False, ("a.txt",))
    assert tree.branch in merged.why
    assert state(repo) == before
    assert (repo / "a.txt").read_text() == "user\n"
    assert Path(tree.path, "a.txt").read_text() == "agent\n"
    assert git(repo, "show", f"{tree.branch}:a.txt") == "agent"
    assert [one.ok for one in trees.merge([tree, fine])] == [False, True]


def test_uncommitted_changes_of_the_user_are_never_touched(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "new.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    (repo / "a.txt").write_text("half done\n")
    before = state(repo)
    (merged,) = trees.merge([tree])
    assert not merged.ok
    assert "uncommitted changes (a.txt)" in merged.why
    assert state(repo) == before
    assert (repo / "a.txt").read_text() == "half done\n"
    assert os.path.isdir(tree.path)


def test_an_untracked_file_in_the_way_is_told_and_kept(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "new.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    (repo / "new.txt").write_text("of the user\n")
    before = state(repo)
    (merged,) = trees.merge([tree])
    assert not merged.ok
    assert "new.txt" in merged.why
    assert state(repo) == before
    assert (repo / "new.txt").read_text() == "of the user\n"


@pytest.mark.parametrize(
    "move", [("checkout", "-q", "-b", "elsewhere"), ("checkout", "-q", "--detach")]
)
def test_nothing_is_merged_into_another_branch_than_the_task_began_on(repo, trees, move):
    assert trees.target == "main"
    tree = trees.add("s")
    Path(tree.path, "new.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    git(repo, *move)
    before = state(repo)
    (merged,) = trees.merge([tree])
    assert not merged.ok
    assert "branch" in merged.why or "elsewhere" in merged.why
    assert state(repo) == before


def test_discarding_removes_worktree_and_branch_whatever_is_in_them(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "junk.txt").write_text("junk\n")
    trees.discard("s")
    assert not os.path.exists(tree.path)
    assert git(repo, "branch", "--format=%(refname:short)") == "main"
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    trees.discard("s")  # once more is none
    trees.discard("never-there")


def test_no_hook_of_the_user_is_run(repo, trees, tmp_path):
    ran = tmp_path / "ran"
    for name in ("pre-commit", "post-checkout", "post-commit", "pre-merge-commit", "post-merge"):
        hook = repo / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\nexit 1\n")
        hook.chmod(0o755)
    tree = trees.add("s")
    Path(tree.path, "new.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    assert trees.merge([tree])[0].ok
    assert not ran.exists()


def test_variables_of_git_do_not_lead_it_astray(repo, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    trees = Worktrees(str(repo), str(tmp_path / "trees"), new_id(), os.environ)
    assert os.path.exists(os.path.join(trees.add("s").path, "a.txt"))
    assert not (tmp_path / "index").exists()


def test_one_that_is_there_is_taken_up_with_what_is_in_it(repo, tmp_path):
    task = new_id()
    tree = Worktrees(str(repo), str(tmp_path / "trees"), task).add("s")
    Path(tree.path, "half.txt").write_text("half\n")
    again = Worktrees(str(repo), str(tmp_path / "trees"), task)
    assert again.add("s") == tree
    assert Path(tree.path, "half.txt").read_text() == "half\n"
    again.commit(tree, "half")
    assert again.add("s") == tree  # where its work began is not forgotten


def test_a_task_that_is_taken_up_remembers_where_it_began(repo, tmp_path):
    task = new_id()
    trees = Worktrees(str(repo), str(tmp_path / "trees"), task)
    assert trees.find("s") is None
    tree = trees.add("s")
    Path(tree.path, "x").touch()
    trees.commit(tree, "x")
    git(repo, "checkout", "-q", "-b", "elsewhere")
    again = Worktrees(str(repo), str(tmp_path / "trees"), task)
    assert (again.target, again.find("s"), again.find("t")) == ("main", tree, None)
    assert not again.merge([tree])[0].ok
    git(repo, "checkout", "-q", "main")
    assert again.merge([tree])[0].ok
    assert again.find("s") is None
    again.tidy()
    assert not (tmp_path / "trees").exists()


def test_one_whose_making_was_cut_short_is_made_anew(repo, trees, tmp_path):
    first = trees.add("first")
    Path(first.path, "first.txt").write_text("first\n")
    trees.commit(first, "first")
    path = tmp_path / "trees" / "second"
    git(repo, "worktree", "add", "-q", "-b", trees.branch_of("second"), str(path), "HEAD")
    tree = trees.add("second", after=["first"])
    assert Path(tree.path, "first.txt").exists()


def test_a_folder_that_was_removed_comes_back_with_the_commits(repo, trees, tmp_path):
    tree = trees.add("s")
    Path(tree.path, "done.txt").write_text("done\n")
    trees.commit(tree, "done")
    git(repo, "worktree", "remove", "--force", tree.path)
    with pytest.raises(WorktreeFailed, match="gone"):
        trees.commit(tree, "more")
    again = trees.add("s")
    assert Path(again.path, "done.txt").read_text() == "done\n"
    assert trees.commit(again, "no more") is True
    assert trees.merge([again])[0].ok
    assert (repo / "done.txt").exists()


def test_work_that_an_agent_committed_itself_counts(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "x.txt").write_text("x\n")
    git(Path(tree.path), "checkout", "-q", "-b", "my-own")
    git(Path(tree.path), "add", "--all")
    git(Path(tree.path), "commit", "-q", "-m", "by the agent")
    assert trees.commit(tree, "rest") is True
    assert git(repo, "show", f"{tree.branch}:x.txt") == "x"
    assert trees.merge([tree])[0].ok
    assert (repo / "x.txt").exists()


def test_an_agent_that_leaves_its_branch_behind_is_told(repo, trees):
    tree = trees.add("s")
    Path(tree.path, "x.txt").write_text("x\n")
    trees.commit(tree, "x")
    git(Path(tree.path), "checkout", "-q", "--detach", "main")
    with pytest.raises(WorktreeFailed, match="left its branch"):
        trees.commit(tree, "more")
    assert git(repo, "show", f"{tree.branch}:x.txt") == "x"


def test_a_merge_that_an_agent_left_in_conflict_is_told(repo, trees):
    tree = trees.add("s")
    at = Path(tree.path)
    (repo / "a.txt").write_text("user\n")
    git(repo, "commit", "-q", "-a", "-m", "user")
    (at / "a.txt").write_text("agent\n")
    trees.commit(tree, "agent")
    with pytest.raises(subprocess.CalledProcessError):
        git(at, "merge", "-q", "main")
    assert "UU a.txt" in git(at, "status", "--porcelain")
    with pytest.raises(WorktreeFailed, match="conflicts"):
        trees.commit(tree, "half merged")


def test_a_repository_inside_a_worktree_is_not_thrown_away(repo, trees):
    tree = trees.add("s")
    inner = Path(tree.path, "inner")
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "only-here.txt").write_text("x\n")
    git(inner, "add", "--all")
    git(inner, "commit", "-q", "-m", "inner")
    trees.commit(tree, "with a repository in it")
    (merged,) = trees.merge([tree])
    assert merged.ok
    assert "kept" in merged.why
    assert (inner / "only-here.txt").exists()


def test_many_can_be_made_at_once(repo, tmp_path):
    task = new_id()

    def make(n: int) -> str:
        trees = Worktrees(str(repo), str(tmp_path / "trees"), task)
        tree = trees.add(f"s{n}")
        Path(tree.path, f"f{n}.txt").write_text(str(n))
        assert trees.commit(tree, f"s{n}")
        return tree.path

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(make, range(12)))
    assert len(set(paths)) == 12
    trees = Worktrees(str(repo), str(tmp_path / "trees"), task)
    merged = trees.merge([trees.add(f"s{n}") for n in range(12)])
    assert [one.why for one in merged if not one.ok] == []
    assert sorted(repo.glob("f*.txt")) == sorted(repo / f"f{n}.txt" for n in range(12))


def test_a_lock_of_another_git_is_waited_for(repo, trees, monkeypatch):
    lock = repo / ".git" / "refs" / "heads" / (trees.branch_of("s") + ".lock")
    lock.parent.mkdir(parents=True)
    lock.touch()
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        lock.unlink()

    monkeypatch.setattr("tenuto.engine.worktrees.time.sleep", pause)
    assert os.path.isdir(trees.add("s").path)
    assert len(waited) == 1


def test_every_step_has_a_branch_that_git_takes(repo, trees):
    names = ["a", "a..b", "a-b", "x.lock", "x.", "x", "A_b.c-d", "9" * 64, "a...b"]
    branches = [trees.branch_of(name) for name in names]
    assert len(set(branches)) == len(names)
    for branch in branches:
        git(repo, "check-ref-format", f"refs/heads/{branch}")


def test_where_there_is_no_repository_the_next_step_is_told(tmp_path, monkeypatch, repo):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    cases = {
        "in no git checkout": (empty, tmp_path / "t"),
        "is no folder": (tmp_path / "nowhere", tmp_path / "t"),
        "inside the checkout": (repo, repo / "trees"),
    }
    for text, (cwd, base) in cases.items():
        with pytest.raises(WorktreeFailed, match=text) as caught:
            Worktrees(str(cwd), str(base), new_id())
        assert caught.value.hint
    git(empty, "init", "-q")
    with pytest.raises(WorktreeFailed, match="no commits"):
        Worktrees(str(empty), str(tmp_path / "t"), new_id())
    with pytest.raises(WorktreeFailed, match="not installed"):
        Worktrees(str(repo), str(tmp_path / "t"), new_id(), {"PATH": str(empty)})
    assert not (repo / "trees").exists()
    assert not (tmp_path / "t").exists()


def test_a_folder_inside_the_checkout_that_git_ignores_will_do(repo):
    (repo / ".git" / "info" / "exclude").write_text("/.tenuto/\n")
    trees = Worktrees(str(repo), str(repo / ".tenuto" / "trees"), new_id())
    tree = trees.add("s")
    Path(tree.path, "x").touch()
    assert trees.commit(tree, "x")
    assert git(repo, "status", "--porcelain") == ""
    assert trees.merge([tree])[0].ok
    assert git(repo, "ls-files") == "a.txt\nsub/b.txt\nx"


def test_something_in_the_way_is_told_and_left_alone(trees, tmp_path):
    path = tmp_path / "trees" / "s"
    path.mkdir(parents=True)
    (path / "precious").touch()
    with pytest.raises(WorktreeFailed, match="in the way"):
        trees.add("s")
    with pytest.raises(WorktreeFailed, match="cannot be removed"):
        trees.discard("s")
    assert (path / "precious").exists()


def test_a_worktree_survives_its_journey_over_a_tape(trees):
    tree = trees.add("s")
    assert msgspec.json.decode(msgspec.json.encode(tree), type=type(tree)) == tree
