"""Every runner passes the port's suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_api import HANG, Anthropic, Api, Reply, fail
from loop_help import Stand

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Finished, RunEvent, RunRequest, Said, Used
from tenuto.runners.cli import CliRunner
from tenuto.testing.agents import EchoRunner
from tenuto.testing.nursery import PlainNursery
from tenuto.testing.runner_conformance import RUNNER_SUITE, Stage, checked

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("R1")]

Check = Callable[[Stage], Awaitable[None]]
KEY = {"ANTHROPIC_API_KEY": "k"}


@pytest.mark.parametrize("check", RUNNER_SUITE)
async def test_echo_conforms(check: Check, tmp_path: Path) -> None:
    stage = Stage(
        make=EchoRunner,
        nursery=PlainNursery(),
        request=RunRequest(cwd=str(tmp_path), env={"TENUTO_ECHO_HOME": str(tmp_path / "echo")}),
        environ={},
        failing="[[fail:overloaded]]",
        endless="[[hang]]",
        asking="[[ask:Bash]] done",
    )
    await check(stage)


def _prepare(api: Api) -> Callable[[str], None]:
    scripts = {
        "plain": lambda: [Anthropic.text("Hello.")],
        "failing": lambda: [fail(529, "overloaded")],
        "endless": lambda: [Reply([*Anthropic.text("Half").pieces[:3], HANG])],
        "asking": lambda: [
            Anthropic.call(("write_file", {"path": "b.txt", "content": "x"})),
            Anthropic.text("Done."),
        ],
    }

    def prepare(which: str) -> None:
        api.play(*scripts[which]())

    return prepare


async def _begun(api: Api) -> None:
    await api.hung.wait()


@pytest.mark.parametrize("check", RUNNER_SUITE)
async def test_the_loop_conforms(check: Check, stand: Stand, api: Api) -> None:
    await check(
        Stage(
            make=CliRunner,
            nursery=stand.nursery,
            request=stand.request(),
            environ=KEY,
            failing="failing",
            endless="endless",
            asking="asking",
            prepare=_prepare(api),
            begun=lambda: _begun(api),
            left=stand.nursery.left,
        )
    )


@pytest.mark.full
@pytest.mark.parametrize("check", RUNNER_SUITE)
async def test_the_process_conforms(
    check: Check, stand: Stand, api: Api, environ: dict[str, str]
) -> None:
    nursery = PlainNursery()
    home = {name: one for name, one in environ.items() if name.startswith("TENUTO_")}
    await check(
        Stage(
            make=CliRunner,
            nursery=nursery,
            request=stand.request(env=home),
            environ=KEY,
            failing="failing",
            endless="endless",
            asking="asking",
            prepare=_prepare(api),
            begun=lambda: _begun(api),
            left=lambda: [
                str(one.process.pid) for one in nursery.children if one.process.returncode is None
            ],
        )
    )


async def test_what_echo_is_told_in_brackets(tmp_path: Path) -> None:
    request = RunRequest(cwd=str(tmp_path), env={"TENUTO_ECHO_HOME": str(tmp_path)}, system="S")
    runner = EchoRunner(answer="{number}: {text} ({system})")
    session = await runner.open(request, PlainNursery())

    async def ask(text: str) -> list[RunEvent]:
        return checked([event async for event in session.prompt(text)])

    assert (await ask("hello [[use:1000,50]] there"))[1:] == [
        Used("echo", 1000, 50),
        Said("1: hello there (S)"),
        Finished(ok=True, text="1: hello there (S)"),
    ]
    assert (await ask("[[think:hm]][[delay:0]][[say:so]]"))[:2] == [Said("hm", True), Said("so")]
    assert (await ask("[[recall]]"))[-1] == Finished(
        ok=True, text="hello [[use:1000,50]] there | [[think:hm]][[delay:0]][[say:so]] | [[recall]]"
    )
    end = (await ask("[[fail:auth]]"))[-1]
    assert isinstance(end, Finished)
    assert end.kind == "auth"
    assert (await ask("[[crash]]"))[-1] == (await ask("anything"))[-1]
    with pytest.raises(RunnerFailed, match="no session other"):
        await runner.open(RunRequest(cwd="/", session="other", env=request.env), PlainNursery())
