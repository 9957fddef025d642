"""The exercise of a zygote: whatever becomes of it, nothing of it stays."""

from __future__ import annotations

import glob
import os
import select
import signal

import pytest

from tenuto.keeper import zygote


def _folders(pid: int) -> list[str]:
    return glob.glob(f"/tmp/tenuto-{pid}-*")


def test_an_exercise_that_fails_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: str) -> None:
        assert _folders(os.getpid())
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(zygote, "Keeper", failing)
    zygote._rehearse("", "")
    assert not _folders(os.getpid())
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_exercise_that_hangs_ends_the_zygote_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zygote, "Keeper", lambda *_: select.select([], [], []))
    monkeypatch.setattr(zygote, "_REHEARSAL_S", 0.2)
    pid = os.fork()
    if pid == 0:
        try:
            zygote._rehearse("", "")
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert not _folders(pid)
