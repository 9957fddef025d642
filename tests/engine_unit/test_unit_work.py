import math
import os
from typing import Any

import msgspec
import pytest

from tenuto.core.errors import InvalidInput
from tenuto.core.specs import Limits
from tenuto.engine.work import Options, code_work, command_work
from tenuto.keeper.procfs import MARK

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/home/someone"}


def test_a_command_is_resolved_and_everything_else_taken_as_it_is(tmp_path):
    options = Options(
        cwd=str(tmp_path), env={"B": "2", "A": "1"}, title="t", deadline=5, idle=2.5, detached=True,
        limits=Limits(memory=1 << 20),
    )  # fmt: skip
    work = command_work(["sh", "-c", "exit 3"], options, ENVIRON)
    spec = work.spec
    assert os.path.isabs(spec.argv[0])
    assert spec.argv[1:] == ("-c", "exit 3")
    assert (spec.kind, spec.cwd, spec.title) == ("command", str(tmp_path), "t")
    assert (spec.deadline, spec.idle, spec.detached) == (5.0, 2.5, True)
    assert spec.limits.memory == 1 << 20
    assert work.environ["A"] == "1"


@pytest.mark.promise("X16")
def test_the_spec_has_the_names_of_variables_and_the_work_their_values():
    options = Options(env={"API_KEY": "hunter2", "A": "b"})
    work = command_work(["true"], options, ENVIRON | {"OTHER_SECRET": "x"})
    assert work.spec.env_names == ("A", "API_KEY")
    assert "hunter2" not in repr(work.spec)
    assert work.environ["API_KEY"] == "hunter2"
    assert work.environ["OTHER_SECRET"] == "x"


@pytest.mark.promise("X1")
def test_what_runs_inside_an_execution_is_its_child():
    assert command_work(["true"], Options(), ENVIRON).spec.parent is None
    assert command_work(["true"], Options(), ENVIRON | {MARK: "the-id"}).spec.parent == "the-id"


@pytest.mark.promise("X13")
def test_without_a_folder_it_is_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_work(["true"], Options(), ENVIRON).spec.cwd == str(tmp_path)


BAD: dict[str, tuple[list[str], dict[str, Any]]] = {
    "no command": ([], {}),
    "a NUL": (["echo", "a\0b"], {}),
    "no text": (["echo", "\udcff"], {}),
    "an empty name": ([""], {}),
    "an unknown program": (["no-such-program-here"], {}),
    "a missing folder": (["true"], {"cwd": "/no/such/folder"}),
    "a file for a folder": (["true"], {"cwd": "/etc/passwd"}),
    "a folder that is no text": (["true"], {"cwd": "/\udcff"}),
    "a folder with a NUL": (["true"], {"cwd": "/\0"}),
    "a variable without a name": (["true"], {"env": {"": "x"}}),
    "a variable with an equals sign": (["true"], {"env": {"A=B": "x"}}),
    "a variable with a NUL": (["true"], {"env": {"A": "\0"}}),
    "a name with a NUL": (["true"], {"env": {"A\0": "x"}}),
    "a name that is no text": (["true"], {"env": {"\udcff": "x"}}),
    "a value that is no text": (["true"], {"env": {"A": "\ud800"}}),
    "a title that is no text": (["true"], {"title": "\ud800"}),
    "a number for a title": (["true"], {"title": 1}),
    "a number in a command": (["echo", 1], {}),
    "a number in the environment": (["true"], {"env": {"A": 1}}),
    "no deadline": (["true"], {"deadline": 0}),
    "a deadline before its start": (["true"], {"deadline": -1}),
    "an endless deadline": (["true"], {"deadline": math.inf}),
    "no idle time": (["true"], {"idle": 0}),
    "an idle time that is no number": (["true"], {"idle": math.nan}),
} | {
    f"{name} of {value}": (["true"], {"limits": {name: value}})
    for name in ("memory", "cpu", "file_size", "open_files", "output")
    for value in (0, -1, math.nan, math.inf)
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_recorded(case):
    argv, options = BAD[case]
    limits = msgspec.structs.replace(Limits(), **options.get("limits", {}))
    asked = msgspec.structs.replace(Options(), **options | {"limits": limits})
    with pytest.raises(InvalidInput):
        command_work(argv, asked, ENVIRON)


def test_what_are_no_limits_and_no_inputs_is_refused():
    with pytest.raises(InvalidInput, match="Limits"):
        command_work(["true"], msgspec.structs.replace(Options(), limits={"memory": 1}), ENVIRON)
    with pytest.raises(InvalidInput, match="by their names"):
        code_work("1", "js", Options(inputs=[1]), ENVIRON, {})  # pyright: ignore


@pytest.mark.parametrize(
    "code",
    ["\0", "x = '\udcff'", "y" * (5 * 1024 * 1024 + 1), 5],
    ids=["nul", "text", "size", "number"],
)
def test_bad_code_is_refused(code):
    with pytest.raises(InvalidInput):
        code_work(code, "bash", Options(), ENVIRON, {})


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidInput, match="working directory"):
        command_work(["true"], Options(), ENVIRON)


def test_code_is_kept_with_its_language():
    spec = code_work("echo hi", "bash", Options(), ENVIRON, {}).spec
    assert (spec.kind, spec.language, spec.code) == ("code", "bash", "echo hi")
