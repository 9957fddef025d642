"""Turning a spec's wish for a sandbox into how its keeper starts it."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from tenuto.core.confinement import Subject
from tenuto.core.specs import Sandbox
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options, Work
from tenuto.stores.layout import LINK, Project

_TMP = "/tmp"


def by_default(options: Options, settings: Settings) -> Options:
    """Return the options with the sandbox of the settings, where they name none."""
    if options.sandbox is not None or settings.sandbox == "none":
        return options
    return msgspec.structs.replace(options, sandbox=Sandbox(settings.sandbox, settings.sandbox_net))


def held(work: Work, execution_id: str, project: Project) -> Work:
    """Return the work as it will be started: in its sandbox, if it is to have one.

    Raises SandboxUnavailable, before anything is recorded, where `require` cannot be met.
    """
    wish = work.spec.sandbox
    if wish is None or not work.spec.argv or work.cell is not None:
        return work  # a cell runs where its session does
    # loaded only for those who want it: most executions have no sandbox
    from tenuto.sandboxes import Ladder
    from tenuto.sandboxes.view import check_links, environment, inside, state_folders, view_of

    spec = work.spec
    cwd = os.path.realpath(spec.cwd)
    hide = state_folders(project.home, os.environ)
    home = os.environ.get("HOME") or os.path.expanduser("~")
    view = view_of(spec.argv, cwd, wish, hide, home)
    check_links(os.environ, view.write)
    for path in hide:
        if any(inside(path, folder) for folder in view.write):
            with suppress(OSError):  # what we cannot make there, bubblewrap will not start without
                os.makedirs(path, 0o700, exist_ok=True)
    environ = environment(work.environ, spec.env_names, view, _TMP, cwd)
    subject = Subject(
        id=execution_id,
        argv=spec.argv,
        cwd=cwd,
        environ=environ,
        view=view,
        net=wish.net,
        limits=spec.limits,
        pty=spec.pty,
        owner=_owner(cwd),
        guard=_guarded(view.write),
    )
    confinement = Ladder().choose(subject, wish.level)
    return msgspec.structs.replace(work, confinement=confinement)


def _owner(cwd: str) -> tuple[int, int] | None:
    """Return whose the working folder is, if root itself could not write there without privileges."""
    status = os.stat(cwd)
    if os.geteuid() != 0 or status.st_uid == 0 or status.st_mode & 0o002:
        return None
    return status.st_uid, status.st_gid


def _guarded(writable: tuple[str, ...]) -> tuple[tuple[str, str | None], ...]:
    """Return the links that it could replace to give the next call a state folder of its making."""
    found: list[tuple[str, str | None]] = []
    for folder in writable:
        path = os.path.join(folder, LINK)
        if os.path.islink(path):
            found.append((path, os.readlink(path)))
        elif os.path.isdir(folder) and not os.path.lexists(path):
            found.append((path, None))
    return tuple(found)
