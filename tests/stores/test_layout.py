import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core.errors import DiskFull, EngineFault
from tenuto.core.ids import day_of, new_id
from tenuto.stores.layout import (
    Project,
    as_error,
    check_room,
    find_project,
    make_home,
    make_link,
    owner_elsewhere,
    state_base,
)


@pytest.fixture
def environ(tmp_path, monkeypatch) -> dict[str, str]:
    for name in ("TENUTO_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def place(tmp_path, environ) -> Path:
    """A folder with no project above it."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def git(folder: Path, *words: str) -> None:
    settings = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *settings, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=clean)


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init")
    git(folder, "commit", "--allow-empty", "-m", "first")
    return folder


def mode_of(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# Finding


def test_without_anything_the_folder_itself_is_the_project(place, environ):
    project = find_project(str(place), environ)
    assert project.root == str(place)
    assert os.path.dirname(project.home) == state_base(environ)
    assert os.path.basename(project.home).startswith("work-")


def test_every_folder_has_a_home_of_its_own(place, environ):
    homes = set()
    for name in ("a", "b", "b/a", "ab"):
        (place / name).mkdir()
        homes.add(find_project(str(place / name), environ).home)
    assert len(homes) == 4


def test_the_nearest_link_wins_over_the_git_root(place, environ):
    repository(place)
    inner = place / "packages" / "one"
    (inner / "src").mkdir(parents=True)
    assert find_project(str(inner / "src"), environ).root == str(place)
    (inner / ".tenuto").mkdir()
    found = find_project(str(inner / "src"), environ)
    assert (found.root, found.home) == (str(inner), str(inner / ".tenuto"))


def test_a_repository_below_a_link_is_a_project_of_its_own(place, environ):
    """Whoever once ran something in a home folder has a link there, above all repositories."""
    (place / ".tenuto").mkdir()
    (place / "plain").mkdir()
    inner = repository(place / "repository")
    (inner / "src").mkdir()
    assert find_project(str(inner / "src"), environ).root == str(inner)
    assert find_project(str(place / "plain"), environ).root == str(place)


def test_from_a_folder_inside_a_repository_its_root_is_found(place, environ):
    repository(place)
    (place / "a" / "b").mkdir(parents=True)
    assert find_project(str(place / "a" / "b"), environ) == find_project(str(place), environ)


@pytest.mark.promise("X16")
def test_worktrees_share_the_state_of_their_repository(place, environ, tmp_path):
    repository(place)
    tree = tmp_path / "elsewhere" / "tree"
    git(place, "worktree", "add", str(tree))
    (tree / "deep").mkdir()
    project = find_project(str(place), environ)
    make_home(project)
    make_link(project)
    assert find_project(str(tree / "deep"), environ) == find_project(str(place), environ)
    assert find_project(str(tree), environ).home == project.home


def test_a_submodule_and_a_separate_git_folder_are_projects_of_their_own(place, environ, tmp_path):
    library = repository(tmp_path / "library")
    repository(place)
    git(place, "-c", "protocol.file.allow=always", "submodule", "add", str(library), "lib")
    assert find_project(str(place / "lib"), environ).root == str(place / "lib")
    apart = tmp_path / "apart"
    apart.mkdir()
    git(apart, "init", "--separate-git-dir", str(tmp_path / "gitdir"))
    assert find_project(str(apart), environ).root == str(apart)


def test_a_git_folder_of_no_repository_is_passed_by(place, environ):
    """Some sandboxes leave an empty one behind, even in /tmp."""
    repository(place)
    inner = place / "a" / "b"
    (inner / ".git" / "info").mkdir(parents=True)
    assert find_project(str(inner), environ).root == str(place)


@pytest.mark.parametrize("content", [b"", b"gitdir: /nowhere", b"\xff\xfe", b"gitdir: ../\xff"])
def test_a_broken_git_file_is_a_root_all_the_same(place, environ, content):
    (place / ".git").write_bytes(content)
    assert find_project(str(place), environ).root == str(place)


def test_tenuto_home_is_honoured(place, environ, tmp_path, monkeypatch):
    wanted = tmp_path / "state"
    monkeypatch.setenv("TENUTO_HOME", str(wanted))
    project = find_project(str(place), {**environ, "TENUTO_HOME": str(wanted)})
    assert (project.root, project.home) == (str(place), str(wanted))
    make_home(project)
    make_link(project)
    assert mode_of(wanted) == 0o700
    assert not os.path.lexists(place / ".tenuto")


def test_state_goes_where_xdg_says(place, environ, tmp_path):
    xdg = {**environ, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert find_project(str(place), xdg).home.startswith(str(tmp_path / "xdg" / "tenuto"))
    assert state_base(environ) == os.path.join(environ["HOME"], ".local", "state", "tenuto")


def test_a_project_reached_through_a_link_is_the_same_one(place, environ, tmp_path):
    (tmp_path / "alias").symlink_to(place)
    assert find_project(str(tmp_path / "alias"), environ) == find_project(str(place), environ)


@pytest.mark.parametrize(
    "name", ["x" * 250, "\u00e9" * 120, "with space", "a'\"$(b)", os.fsdecode(b"\xff\xfe")]
)
def test_a_folder_of_any_name_can_be_a_project(place, environ, name):
    folder = place / name
    folder.mkdir()
    project = find_project(str(folder), environ)
    make_home(project)
    make_link(project)
    project.home.encode()
    assert find_project(str(folder), environ).home == project.home


# Making


@pytest.mark.promise("X16")
def test_the_home_is_private_whatever_the_umask(place, environ):
    before = os.umask(0)
    try:
        project = find_project(str(place), environ)
        make_home(project)
    finally:
        os.umask(before)
    assert mode_of(project.home) == 0o700
    assert mode_of(project.executions) == 0o700


@pytest.mark.promise("X16")
def test_a_home_that_others_may_read_is_closed(place, environ):
    (place / ".tenuto").mkdir(mode=0o755)
    os.chmod(place / ".tenuto", 0o755)
    make_home(find_project(str(place), environ))
    assert mode_of(place / ".tenuto") == 0o700
    assert not os.path.islink(place / ".tenuto")


def test_the_link_is_made_once_and_leads_home(place, environ):
    project = find_project(str(place), environ)
    make_home(project)
    make_link(project)
    assert os.readlink(place / ".tenuto") == project.home
    again = find_project(str(place), environ)
    assert again == project
    make_home(again)
    make_link(again)
    assert os.readlink(place / ".tenuto") == project.home


def test_a_dangling_or_relative_link_is_followed(place, environ, tmp_path):
    (place / ".tenuto").symlink_to("../elsewhere/state")
    project = find_project(str(place), environ)
    make_home(project)
    assert os.path.isdir(tmp_path / "elsewhere" / "state" / "executions")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"/.tenuto\n"),
        (None, b"/.tenuto\n"),
        (b"*.o\n", b"*.o\n/.tenuto\n"),
        (b"*.o", b"*.o\n/.tenuto\n"),
        (b"a\n/.tenuto\nb\n", b"a\n/.tenuto\nb\n"),
        (b"/.tenuto", b"/.tenuto"),
        (b"sub/.tenuto\n", b"sub/.tenuto\n/.tenuto\n"),
        (b"caf\xe9\n", b"caf\xe9\n/.tenuto\n"),
    ],
)
def test_git_is_told_to_leave_the_link_alone(place, environ, before, after):
    repository(place)
    exclude = place / ".git" / "info" / "exclude"
    exclude.unlink(missing_ok=True)
    if before is not None:
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_bytes(before)
    make_home(find_project(str(place), environ))
    make_link(find_project(str(place), environ))
    assert exclude.read_bytes() == after


def test_git_sees_no_change_and_clean_removes_nothing(place, environ):
    repository(place)
    make_home(find_project(str(place), environ))
    make_link(find_project(str(place), environ))
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=place, check=True, capture_output=True, text=True
    )
    assert done.stdout == ""
    git(place, "clean", "-fd")
    assert os.path.islink(place / ".tenuto")


def test_a_project_that_cannot_hold_the_link_works_without_it(place, environ, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "symlink", refused)
    project = find_project(str(place), environ)
    make_home(project)
    make_link(project)
    assert os.path.isdir(project.executions)
    assert find_project(str(place), environ) == project


def test_a_file_in_place_of_the_link_is_left_alone(place, environ):
    (place / ".tenuto").write_text("mine")
    project = find_project(str(place), environ)
    make_home(project)
    make_link(project)
    assert (place / ".tenuto").read_text() == "mine"
    assert os.path.isdir(project.executions)


@pytest.mark.promise("X16")
def test_a_home_of_another_user_is_refused_and_left_alone(place, environ):
    home = place / ".tenuto"
    home.mkdir()
    os.chmod(home, 0o755)
    try:
        os.chown(home, os.getuid() + 12345, -1)
    except PermissionError:
        if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
            raise
        pytest.skip("only root can give a folder away")
    with pytest.raises(EngineFault, match="belongs to another user"):
        make_home(find_project(str(place), environ))
    assert os.listdir(home) == []
    assert mode_of(home) == 0o755


def test_a_home_that_cannot_be_made_is_an_engine_fault(place, environ):
    (place / "file").write_text("")
    project = Project(root=str(place), home=str(place / "file" / "home"))
    with pytest.raises(EngineFault, match="cannot make the state folder"):
        make_home(project)


# Inside


def test_executions_stand_under_their_day_and_are_found_again(place, environ):
    project = find_project(str(place), environ)
    make_home(project)
    assert list(project.all_ids()) == []
    ids = [new_id() for _ in range(3)]
    for one in ids:
        os.makedirs(project.folder(one))
    assert project.folder(ids[0]) == f"{project.executions}/{day_of(ids[0])}/{ids[0]}"
    (Path(project.executions) / "stray").write_text("")
    (Path(project.folder(ids[0])).parent / "not-an-id").mkdir()
    assert list(project.all_ids()) == ids


@pytest.mark.promise("X16")
def test_an_execution_of_another_project_is_known_to_be_that(place, environ):
    projects = []
    for name in ("one", "two"):
        (place / name).mkdir()
        projects.append(find_project(str(place / name), environ))
        make_home(projects[-1])
    mine, theirs, nobodys = new_id(), new_id(), new_id()
    os.makedirs(projects[0].folder(mine))
    os.makedirs(projects[1].folder(theirs))
    assert owner_elsewhere(projects[0], theirs, environ)
    assert not owner_elsewhere(projects[0], mine, environ)
    assert not owner_elsewhere(projects[0], nobodys, environ)


def test_no_room_is_told_before_anything_starts(place, environ, monkeypatch):
    project = find_project(str(place), environ)
    make_home(project)
    check_room(project)
    status = os.statvfs(place)
    full = os.statvfs_result((*status[:4], 1, *status[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(DiskFull, match="no room"):
        check_room(project)


@given(st.integers(1, 133))
def test_every_failed_file_operation_has_an_error_with_a_next_step(number):
    error = as_error(OSError(number, os.strerror(number)), "the thing")
    assert error.hint
    assert error.message == f"the thing: {os.strerror(number)}"
    assert isinstance(error, DiskFull) == (number in (28, 122))
