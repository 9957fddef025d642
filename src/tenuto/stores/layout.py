"""Where a project's state is: found from any folder inside it, made at first use, ours alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from tenuto.core.errors import DiskFull, EngineFault, InvalidInput
from tenuto.core.ids import day_of, is_id

LINK = ".tenuto"
_ROOM = 256 * 1024


class Project(msgspec.Struct, frozen=True):
    """The folder people work in and the folder where its executions are recorded."""

    root: str
    home: str

    @property
    def executions(self) -> str:
        """The folder that holds the days."""
        return os.path.join(self.home, "executions")

    @property
    def index(self) -> str:
        """The database over all executions."""
        return os.path.join(self.home, "index.db")

    @property
    def sessions(self) -> str:
        """A file for each session's name: locked while one is begun, and naming the last one."""
        return os.path.join(self.home, "sessions")

    @property
    def history(self) -> str:
        """Where the records of tasks that were cleaned away are kept."""
        return os.path.join(self.home, "history")

    @property
    def quarantine(self) -> str:
        """Where damaged files are put aside."""
        return os.path.join(self.home, "quarantine")

    def folder(self, execution_id: str) -> str:
        """The folder of one execution."""
        return os.path.join(self.executions, day_of(execution_id), execution_id)

    def all_ids(self) -> Iterator[str]:
        """Yield every execution that has a folder, oldest day first."""
        for day in _listed(self.executions):
            for name in _listed(os.path.join(self.executions, day)):
                if is_id(name):
                    yield name


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def state_base(environ: Mapping[str, str]) -> str:
    """Return the folder that holds the state of all projects of this user."""
    home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return os.path.join(state, "tenuto")


def current_folder() -> str:
    """Return the folder we are in, or say that it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        message = "the current folder does not exist any more"
        raise InvalidInput(message, "go to another one with cd") from None


def find_project(cwd: str, environ: Mapping[str, str]) -> Project:
    """Return a folder's project: TENUTO_HOME, the nearest .tenuto or git repository, or itself.

    The nearer of the two counts: work in a home folder must not take in all repositories below.
    """
    cwd = os.path.realpath(cwd)
    if home := environ.get("TENUTO_HOME"):
        return Project(root=cwd, home=os.path.abspath(home))
    linked, checkout = _nearest(cwd, LINK), _checkout(cwd)
    root = linked or cwd
    if len(checkout) > len(linked):
        root = _git_root(checkout)
    link = os.path.join(root, LINK)
    if os.path.islink(link):
        return Project(root=root, home=os.path.join(root, os.readlink(link)))
    if os.path.isdir(link):
        return Project(root=root, home=link)
    return Project(root=root, home=os.path.join(state_base(environ), _key(root)))


def _key(root: str) -> str:
    """Return a project's folder name: readable, and unlike that of any other path."""
    import hashlib  # only before the link exists: it costs every start 4 ms

    digest = hashlib.sha256(os.fsencode(root)).hexdigest()
    name = os.path.basename(root)[:50].encode("utf-8", "replace").decode() or "root"
    return f"{name}-{digest[:12]}"


def _nearest(start: str, name: str) -> str:
    folder = start
    while True:
        if os.path.lexists(os.path.join(folder, name)):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above


def _checkout(start: str) -> str:
    """Return the nearest folder that git would take for a checkout, or nothing."""
    root = _nearest(start, ".git")
    while root and os.path.isdir(f"{root}/.git") and not os.path.lexists(f"{root}/.git/HEAD"):
        root = _nearest(os.path.dirname(root), ".git") if root != "/" else ""  # of no repository
    return root


def _git_root(checkout: str) -> str:
    """Return the parent of git's common folder: all worktrees of a repository are one project."""
    marker = os.path.join(checkout, ".git")
    if os.path.isdir(marker):
        return checkout
    try:
        git_dir = os.path.join(checkout, _line(marker).removeprefix("gitdir:").strip())
        common = os.path.join(git_dir, _line(os.path.join(git_dir, "commondir")))
        return os.path.dirname(os.path.realpath(common))
    except OSError:
        return checkout


def _line(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read().strip())


def make_home(project: Project) -> None:
    """Make the state folder, private."""
    try:
        project.home.encode()
    except UnicodeEncodeError:  # no such path can be given to SQLite
        shown = os.fsencode(project.home).decode("utf-8", "backslashreplace")
        raise InvalidInput(
            f"the path of the state folder {shown} is no valid text here",
            "use a UTF-8 locale (LC_ALL=C.UTF-8), or set TENUTO_HOME to another folder",
        ) from None
    try:
        os.makedirs(project.home, mode=0o700, exist_ok=True)
        status = os.stat(project.home)
        if status.st_uid != os.geteuid():
            raise EngineFault(
                f"the state folder {project.home} belongs to another user",
                "set TENUTO_HOME to a folder of your own",
            )
        if status.st_mode & 0o777 != 0o700:
            os.chmod(project.home, 0o700)
        with suppress(FileExistsError):
            make_private(project.executions)
    except OSError as error:
        what = f"cannot make the state folder {project.home}"
        raise as_error(error, what, "check its owner and rights, or set TENUTO_HOME") from error


def make_link(project: Project) -> None:
    """Make the link to the state folder, where the project can hold one and has none.

    Only for what is to stay: a look at a folder must not make a project of it.
    """
    link = os.path.join(project.root, LINK)
    outside = os.path.realpath(project.home) != os.path.realpath(link)
    if outside and "TENUTO_HOME" not in os.environ and not os.path.lexists(link):
        _link(project, link)


def make_private(folder: str) -> None:
    """Make a folder for our user alone, whatever the umask says."""
    os.mkdir(folder, 0o700)
    os.chmod(folder, 0o700)


def _link(project: Project, link: str) -> None:
    """Make the link people see; a project that cannot hold it works all the same."""
    try:
        os.symlink(project.home, link)
    except OSError:
        return
    git = os.path.join(project.root, ".git")
    try:
        if os.path.isdir(git):
            os.makedirs(os.path.join(git, "info"), exist_ok=True)
            _add_line(os.path.join(git, "info", "exclude"), f"/{LINK}".encode())
    except OSError:
        return


def _add_line(path: str, line: bytes) -> None:
    """Append a line to a text file of any encoding unless it has it."""
    with open(path, "a+b") as file:
        file.seek(0)
        text = file.read()
        if line not in text.splitlines():
            file.write((b"" if text.endswith(b"\n") or not text else b"\n") + line + b"\n")


def owner_elsewhere(project: Project, execution_id: str, environ: Mapping[str, str]) -> bool:
    """Tell whether another project of this user owns the execution."""
    base = state_base(environ)
    return any(
        os.path.isdir(os.path.join(base, key, "executions", day_of(execution_id), execution_id))
        for key in _listed(base)
        if os.path.join(base, key) != project.home
    )


def check_room(project: Project) -> None:
    """Raise DiskFull where there is no room to record another execution, and none for its end."""
    status = os.statvfs(project.home)
    free = status.f_bavail * status.f_frsize
    if status.f_blocks and free < _ROOM:  # some file systems do not say
        raise DiskFull(
            f"only {free >> 10} KiB are free for {project.home}: no room to record an execution",
            "make room with: tenuto clean --older 7d",
        )


def as_error(
    error: OSError, what: str, hint: str = "check the folder's owner and rights"
) -> DiskFull | EngineFault:
    """Return a failed file operation as our own error, with the next step."""
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what}: {error.strerror}", "make room with: tenuto clean --older 7d")
    return EngineFault(f"{what}: {error.strerror}", hint)
