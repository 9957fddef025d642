import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit_help import folded

from tenuto.core import events as ev
from tenuto.core.specs import Spec
from tenuto.core.states import State, WaitingFor
from tenuto.engine.hints import suggest

STARTED = ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot="b")
FAILED = ev.Ended(state=State.FAILED, reason="exit", exit_code=1)
SAID = {
    "ModuleNotFoundError: No module named 'yaml'": "module is missing",
    "Error: Cannot find module 'express'": "module is missing",
    "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'": "module is missing",
    "Error: listen EADDRINUSE: address already in use :::3000": "port is in use",
    "OSError: [Errno 98] Address already in use": "port is in use",
    "SyntaxError: invalid syntax": "does not parse",
    "bash: -c: line 1: syntax error near unexpected token": "does not parse",
    "IndentationError: unexpected indent": "does not parse",
    "MemoryError": "out of memory",
    "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory": "out of memory",
    "fork: Cannot allocate memory": "out of memory",
    "PermissionError: [Errno 13] Permission denied: '/etc/shadow'": "permission denied",
    "Error: EACCES: permission denied, open '/root'": "permission denied",
    "FileNotFoundError: [Errno 2] No such file or directory: 'x'": "file is missing",
    "Error: ENOENT: no such file or directory, open 'x'": "file is missing",
    "python3: can't open file 'x.py'": "file is missing",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "ConnectionRefusedError: [Errno 111] Connection refused": "nothing listens",
    "getaddrinfo ENOTFOUND example.invalid": "cannot be resolved",
    "OSError: [Errno 24] Too many open files": "too many open files",
    "bash: line 1: frobnicate: command not found": "command is missing",
    "TimeoutError: The read operation timed out": "timed out by itself",
    "KeyError: 'x'": "raised an exception",
    "TypeError: undefined is not a function": "raised an exception",
}


@pytest.mark.promise("X12")
@pytest.mark.parametrize("said", SAID)
def test_a_failure_is_answered_by_what_it_last_said(said):
    assert SAID[said] in suggest(folded(STARTED, FAILED), f"some output\n{said}\n")


@pytest.mark.promise("X12", "C9")
def test_no_line_is_promised_where_none_is_known():
    spec = Spec(kind="code", argv=(), cwd="/", language="js", engine="deno", code="1+")
    said = {"SyntaxError": "without --engine deno", "Error": "see its message"}
    for name, advice in said.items():
        nowhere = folded(STARTED, ev.Raised(name=name, message="x"), FAILED, spec=spec)
        assert advice in suggest(nowhere, "")
        there = folded(STARTED, ev.Raised(name=name, message="x", line=1), FAILED, spec=spec)
        assert "line" in suggest(there, "") and advice not in suggest(there, "")


@pytest.mark.promise("X12", "S1")
@pytest.mark.parametrize("said", ["PermissionError: [Errno 13] Permission denied", "ENOENT: 'x'"])
def test_what_the_sandbox_may_have_refused_is_told_so(said):
    boxed = folded(STARTED, ev.Confined(level="bwrap+seccomp", net="off"), FAILED)
    assert "sandbox" in suggest(boxed, said) and "--readable" in suggest(boxed, said)
    machine = folded(STARTED, ev.Confined(level="landlock+seccomp+rlimits"), FAILED)
    assert "sandbox" not in suggest(machine, said)


@pytest.mark.promise("X12")
@pytest.mark.parametrize("said", [text for text in SAID if ": " in text and text[0].isupper()])
def test_an_exception_that_the_runner_tells_counts_without_any_output(said):
    name, _, message = said.partition(": ")
    execution = folded(STARTED, ev.Raised(name=name, message=message), FAILED)
    assert SAID[said] in suggest(execution, "")


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (ev.Ended(state=State.FAILED, reason="deadline"), "--deadline"),
        (ev.Ended(state=State.FAILED, reason="idle"), "--idle"),
        (ev.Ended(state=State.FAILED, reason="limit", detail="memory limit"), "raise that limit"),
        (ev.Ended(state=State.FAILED, reason="exec", exit_code=127), "could not be started"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGKILL"), "killed from outside"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGSEGV"), "native code"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGABRT"), "aborted itself"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGBUS"), "went away"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGILL"), "another machine"),
        (ev.Ended(state=State.FAILED, reason="signal", signal="SIGPIPE"), "reader was gone"),
        (ev.Lost(reason="its keeper died"), "resume --force 0193a5f2-1111-7222"),
    ],
)
def test_how_it_ended_counts_too(end, words):
    assert words in suggest(folded(STARTED, end), "nothing of note")


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.KILLED, State.INTERRUPTED])
def test_an_end_that_was_meant_needs_no_advice(state):
    assert suggest(folded(STARTED, ev.Ended(state=state)), "PermissionError") == ""


@pytest.mark.promise("X3")
@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (WaitingFor.INPUT, "tenuto send 0193a5f2-1111-7222 TEXT"),
        (WaitingFor.DISK, "tenuto clear 0193a5f2-1111-7222"),
        (WaitingFor.APPROVAL, "tenuto approve 0193a5f2-1111-7222"),
        (WaitingFor.BUDGET, "it waits for budget: tenuto approve"),
        (WaitingFor.HOST, 'host: serve its functions with engine.serve("0193a5f2-1111-7222"'),
    ],
)
def test_while_it_waits_the_hint_says_for_what(waiting, words):
    assert words in suggest(folded(STARTED, ev.Waited(on=waiting)), "")


def test_a_full_quota_is_no_full_disk():
    full = ev.Waited(on=WaitingFor.DISK, detail="the output quota of 9 bytes is used up")
    hint = "drop its output with: tenuto clear 0193a5f2-1111-7222"
    assert suggest(folded(STARTED, full), "") == hint


def test_while_it_runs_there_is_no_hint():
    assert suggest(folded(), "Traceback") == ""
    assert suggest(folded(STARTED), "Traceback") == ""


@given(st.text())
def test_any_last_words_are_taken(words):
    assert isinstance(suggest(folded(STARTED, FAILED), words), str)
