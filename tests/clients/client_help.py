"""The real clients, each started as its users start it, with a scripted model behind it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from mcp_help import Place
from npm_help import QUICK, SLOW, program

from tenuto.testing.models import Call, Model, Step

DOCS = Path(__file__).parents[2] / "docs" / "mcp.md"
PATIENCE = 90.0
_THEIRS = ("CLAUDE", "ANTHROPIC", "OPENAI", "CODEX", "OPENCODE", "HTTP_PROXY", "HTTPS_PROXY")
_NOTICE = re.compile(r"\n\n<system-reminder>.*", re.S)


class Home(Place):
    """A project and a home of their own, with the state where a user has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.base = folder
        self.env = {
            name: value for name, value in self.env.items() if not name.upper().startswith(_THEIRS)
        }
        # a client may hand its servers a few variables only; HOME is among them
        del self.env["TENUTO_HOME"]
        self.home = self.folder / ".tenuto"
        # what a client that is killed leaves lying about goes with the test
        self.env["TMPDIR"] = str(folder / "tmp")
        (folder / "tmp").mkdir()

    def gone(self) -> None:
        """Wait until nothing runs any more that was started under this home."""
        mark = f"HOME={self.base}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                waiting = os.pidfd_open(int(path.name))
            except OSError:
                continue  # gone meanwhile
            ended, _, _ = select.select([waiting], [], [], 30)
            name = (path / "cmdline").read_bytes() if not ended else b""
            if not ended:
                signal.pidfd_send_signal(waiting, signal.SIGKILL)
            os.close(waiting)
            assert ended, f"left running: {name!r}"


def documented(client: str) -> str:
    """Return what docs/mcp.md says about adding the server to a client."""
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == client:
            return cells[1]
    raise AssertionError(f"docs/mcp.md has no row for {client}")


def quoted(text: str) -> list[str]:
    """Return the pieces of code in a line of Markdown."""
    return re.findall(r"`([^`]+)`", text)


class Shown:
    """A tool's result as the model was shown it: JSON data, or text."""

    def __init__(self, raw: str) -> None:
        self.raw = _NOTICE.sub("", raw)
        text = re.sub(r"^Wall time: [\d.]+ seconds\nOutput:\n", "", self.raw)
        self.data: dict[str, Any] | None = json.loads(text) if text.startswith("{") else None

    @property
    def output(self) -> str:
        return str(self.data.get("output", "")) if self.data is not None else self.raw

    @property
    def cut(self) -> bool:
        """Whether there is more to read at once."""
        if self.data is not None:
            return bool(self.data.get("truncated"))
        return "[… cut at " in self.raw

    @property
    def ended(self) -> bool:
        if self.data is not None:
            return "ended_at" in self.data
        ended = r"[Ee]xecution [0-9a-f-]{36} (is )?(succeeded|failed|killed)"
        return re.search(ended, self.raw) is not None

    def rows(self) -> list[int]:
        """The numbers of the rows in the output; the last lines of a cut page are not counted."""
        shown = self.output.partition("\n[… cut at ")[0]
        return [int(number) for number in re.findall(r"row-(\d+)", shown)]

    def says(self, *words: str) -> bool:
        return all(word in self.raw for word in words)

    def is_handover(self, execution_id: str) -> bool:
        """Tell whether all that a handover has to say was shown: in this one form."""
        if self.data is None:
            runs = "Running now (1):" in self.raw
            opens = self.raw.startswith("Execution moved to async mode after ")
        else:
            runs = [one["execution_id"] for one in self.data["running"]] == [execution_id]
            opens = self.data["message"].startswith("Execution moved to async mode after ")
        calls = self.says("output(", "cursor=", "wait_s=50", "kill(", execution_id)
        return runs and opens and calls and not self.ended


class Client:
    """One of the clients; `timeout` is its own for tool calls, in seconds."""

    name = ""
    row = ""  # in docs/mcp.md
    packages = QUICK
    program = ""  # where its package has the program
    searches = False  # its model has to look for our tools first

    def __init__(self, home: Home, model: Model) -> None:
        self.path = program(self.packages, self.program)
        self.home = home
        self.model = model
        self.env = {**home.env, **self.variables()}
        self.timeout: float | None = None

    def variables(self) -> dict[str, str]:
        return {}

    def add(self) -> None:
        """Add our server with the line that docs/mcp.md gives for it."""
        words = quoted(documented(self.row))[0].split()
        assert words[0] == self.name
        done = subprocess.run(
            [self.path, *words[1:]], cwd=self.home.folder, env=self.env, timeout=PATIENCE,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def command(self, prompt: str) -> list[str]:
        raise NotImplementedError

    def script(self, *steps: Step) -> list[Step]:
        found = Call("tool_search", query="run code or a command to its end", limit=8)
        return [found, *steps] if self.searches else list(steps)

    def start(self, *steps: Step) -> subprocess.Popen[str]:
        """Start the client on a script."""
        self.model.play(*self.script(*steps))
        return subprocess.Popen(
            self.command("Do it."), cwd=self.home.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *steps: Step) -> list[Shown]:
        """Let the client play a script to its end; return what its model was shown."""
        process = self.start(*steps)
        try:
            told, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        assert not self.model.errors, (self.model.errors, told[-3000:])
        assert process.returncode == 0, told[-3000:]
        return [Shown(text) for text in self.model.results]

    def first(self) -> dict[str, str]:
        """Return the tools of ours that its model can call from the beginning, with their words."""
        seen = self.model.seen[1 if self.searches else 0]
        return {name: tool.description for name, tool in seen.tools.items() if tool.own}


class Claude(Client):
    name = "claude"
    row = "Claude Code"
    program = "@anthropic-ai/claude-code-linux-*/claude"

    def variables(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": "sk-ant-api03-" + "x" * 80,
            "CLAUDE_CONFIG_DIR": str(self.home.base / "claude"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }

    def command(self, prompt: str) -> list[str]:
        if self.timeout is not None:
            self.env["MCP_TOOL_TIMEOUT"] = str(int(self.timeout * 1000))
        return [
            self.path, "-p", prompt, "--output-format", "stream-json", "--verbose",
            "--model", "claude-sonnet-4-5", "--allowedTools", "mcp__tenuto",
        ]  # fmt: skip


class Codex(Client):
    name = "codex"
    row = "Codex"
    program = "@openai/codex-linux-*/vendor/*/bin/codex"
    searches = True  # with the models it knows, it keeps tools of servers behind a search

    def variables(self) -> dict[str, str]:
        return {"CODEX_HOME": str(self.home.base / ".codex"), "SOME_MODEL_KEY": "x"}

    def add(self) -> None:
        folder = self.home.base / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(
            f"""\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{self.model.url}/v1"
env_key = "SOME_MODEL_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
supports_websockets = false
"""
        )
        super().add()

    def command(self, prompt: str) -> list[str]:
        approve = 'mcp_servers.tenuto.default_tools_approval_mode="approve"'
        words = [self.path, "exec", "--json", "--skip-git-repo-check", "-c", approve]
        if self.timeout is not None:
            words += ["-c", f"mcp_servers.tenuto.tool_timeout_sec={self.timeout}"]
        return [*words, prompt]


class OpenCode(Client):
    name = "opencode"
    row = "OpenCode"
    packages = SLOW
    program = "opencode-linux-*/bin/opencode"

    def variables(self) -> dict[str, str]:
        model = {"tool_call": True, "limit": {"context": 200_000, "output": 8000}}
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": "scripted/model",
            "small_model": "scripted/model",
            "enabled_providers": ["scripted"],
            "provider": {
                "scripted": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": self.model.url + "/v1", "apiKey": "x"},
                    "models": {"model": model},
                }
            },
        }
        return {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "PWD": str(self.home.folder),
        }

    def add(self) -> None:
        (snippet,) = [one for one in quoted(documented(self.row)) if "{" in one]
        self.config = json.loads("{" + snippet + "}")

    def command(self, prompt: str) -> list[str]:
        if self.timeout is not None:
            self.config["mcp"]["tenuto"]["timeout"] = int(self.timeout * 1000)
        (self.home.folder / "opencode.json").write_text(json.dumps(self.config))
        return [self.path, "run", "--format", "json", prompt]


CLIENTS: dict[str, type[Client]] = {one.name: one for one in (Claude, Codex, OpenCode)}
