"""The exit codes of every verb that takes an id, over all that an id can stand for: one rule.

0 it was done; 1 refused as things stand; 2 what can never work; 75 it runs on; else its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cli_help import CommandLine

pytestmark = pytest.mark.promise("U1")

ECHO = '[runners]\necho = "tenuto.testing.agents:EchoRunner"\n'
UNKNOWN = "01a1e140-addb-7705-a347-fc18914d1ae7"

# columns: no such id, no id at all, then a command and a task, each running, ended and killed
CODES: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "show ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "logs ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "history ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "export ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "tree ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "wait ID --up-to 0": (1, 2, 75, 3, 137, 75, 0, 137),
    "attach ID": (1, 2, 75, 1, 1, 75, 1, 1),
    "send ID x": (1, 2, 0, 1, 1, 2, 2, 2),
    "clear ID": (1, 2, 0, 0, 0, 0, 0, 0),
    "checkpoint ID": (1, 2, 2, 2, 2, 0, 0, 0),
    "approve ID": (1, 2, 2, 2, 2, 1, 1, 1),
    "deny ID": (1, 2, 2, 2, 2, 1, 1, 1),
    "resume -d ID": (1, 2, 1, 1, 1, 1, 1, 1),
    "resume -d --force ID": (1, 2, 1, 1, 1, 1, 1, 1),
    "resume -d ID --from 9999": (1, 2, 2, 2, 2, 1, 1, 1),
    "interrupt ID": (1, 2, 0, 1, 1, 0, 1, 1),
    "kill ID": (1, 2, 0, 1, 1, 0, 1, 1),
}
THINGS = (
    "unknown", "malformed", "running command", "ended command", "killed command",
    "running task", "ended task", "killed task",
)  # fmt: skip


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    found = CommandLine(tmp_path_factory.mktemp("codes"))
    (found.folder / "tenuto.toml").write_text(ECHO)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ids(line: CommandLine) -> dict[str, str]:
    """One of each that no verb changes, and those that run: they are replaced once ended."""
    command = line.start("--", "sh", "-c", "exit 3")
    task = line("task", "-d", "--runtime", "echo", "done").stdout.strip()
    known = {"unknown": UNKNOWN, "malformed": "not-an-id"}
    known |= {"ended command": command, "ended task": task}
    for kind, begin in STARTERS.items():
        known[f"killed {kind}"] = begin(line)
        assert line("kill", known[f"killed {kind}"]).returncode == 0
    assert line("wait", command, task).returncode == 3
    return known


def _task(line: CommandLine) -> str:
    return line("task", "-d", "--runtime", "echo", "[[hang]]").stdout.strip()


STARTERS: dict[str, Callable[[CommandLine], str]] = {
    "command": lambda line: line.start("--", "sleep", "600"),
    "task": _task,
}


def running(line: CommandLine, ids: dict[str, str], kind: str) -> str:
    """Return one that runs: that of the test before, if it left it so."""
    name = f"running {kind}"
    if name not in ids or line.state(ids[name]) not in ("running", "waiting"):
        ids[name] = STARTERS[kind](line)
    return ids[name]


@pytest.mark.parametrize("verb", CODES)
def test_every_verb_has_the_same_code_for_the_same_refusal(
    line: CommandLine, ids: dict[str, str], verb: str
) -> None:
    for kind in STARTERS:
        running(line, ids, kind)
    found: dict[str, int] = {}
    for thing, code in zip(THINGS, CODES[verb], strict=True):
        words = [ids[thing] if word == "ID" else word for word in verb.split()]
        if words[0] == "attach":
            words.append("--no-stdin")
            if code == 75:
                continue  # it stays for as long as that runs
        done = line(*words)
        found[thing] = done.returncode
        assert bool(done.stderr) or code not in (1, 2), "a refusal says why"
    wanted: dict[str, int] = dict(zip(THINGS, CODES[verb], strict=True))
    assert found == {thing: wanted[thing] for thing in found}


def test_without_an_id_it_is_never_a_guess(cli: CommandLine) -> None:
    (cli.folder / "tenuto.toml").write_text(ECHO)
    for verb in ("approve", "deny", "wait", "logs"):
        assert cli(verb).returncode == 1, "nothing is there"
    for _ in range(2):
        task = cli("task", "-d", "--runtime", "echo", "[[ask:Bash]]").stdout.strip()
        assert cli("wait", task).returncode == 75
    for verb in ("approve", "deny", "wait", "logs"):
        done = cli("--json", verb)
        assert (done.returncode, '"ambiguous_id"' in done.stdout) == (1, True), verb
