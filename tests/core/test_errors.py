import inspect

import pytest

from tenuto.core import errors

EVERY = [
    one
    for one in vars(errors).values()
    if inspect.isclass(one) and issubclass(one, errors.TenutoError)
]
CODES = {  # stable: programs compare them
    "TenutoError": "error",
    "InvalidInput": "bad_input",
    "InterpreterMissing": "interpreter_missing",
    "UnknownExecution": "unknown_id",
    "AmbiguousId": "ambiguous_id",
    "NotOwned": "not_owned",
    "NotRunning": "not_running",
    "NotFinished": "not_finished",
    "NothingAsked": "nothing_asked",
    "KeeperUnreachable": "keeper_unreachable",
    "ExecutionFailed": "execution_failed",
    "SandboxUnavailable": "sandbox_unavailable",
    "UnknownTool": "unknown_tool",
    "DiskFull": "disk_full",
    "NewerTape": "newer_tape",
    "NewerState": "newer_state",
    "StateDamaged": "state_damaged",
    "UnknownCheckpoint": "unknown_checkpoint",
    "EnvironmentChanged": "environment_changed",
    "FolderGone": "folder_gone",
    "RuntimeGone": "runtime_gone",
    "EngineFault": "engine_fault",
    "UnknownName": "unknown_name",
    "InvalidPlan": "invalid_plan",
    "RunnerFailed": "runner_failed",
    "BudgetReached": "budget_reached",
    "WorktreeFailed": "worktree_failed",
}


def drawn() -> dict[str, tuple[str, str]]:
    """The tree in the docstring: class -> (parent, code)."""
    found: dict[str, tuple[str, str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if "── " not in line:
            continue
        depth = line.index("── ") // 4
        name, code = line.partition("── ")[2].split()[:2]
        path[depth:] = [name]
        found[name] = (path[depth - 1] if depth else "TenutoError", code)
    return found


def test_every_error_is_drawn_under_its_parent_with_its_code():
    classes = {one.__name__: (one.__mro__[1].__name__, one.code) for one in EVERY}
    assert classes.pop("TenutoError") == ("Exception", "error")
    assert drawn() == classes


def test_codes_are_unique_and_never_change():
    assert {one.__name__: one.code for one in EVERY} == CODES
    assert len({one.code for one in EVERY}) == len(EVERY)
    assert all("code" in vars(one) for one in EVERY)


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_says_what_and_the_next_step(kind):
    error = kind("what went wrong", "do this")
    assert (error.message, error.hint) == ("what went wrong", "do this")
    assert str(error) == "what went wrong (do this)"
    assert str(kind("alone")) == "alone"
