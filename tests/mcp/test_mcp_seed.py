"""The three usage examples of the seed document on async handover, as written there but for the ids."""

from __future__ import annotations

import re

import pytest
from mcp_help import MODERN, Place, text

LONG = """
    console.log('Starting long task...');
    for (let i = 0; i < 35; i++) {
      await new Promise(r => setTimeout(r, 1000));
      console.log('Progress: ' + i + ' seconds');
    }
    'Done'
"""
INTERACTIVE = """
    console.log('Enter your name:');
    const name = await readStdin(0);
    console.log('Hello, ' + name + '!');
"""
STREAMING = """
    for (let i = 0; i < 10; i++) {
      await new Promise(r => setTimeout(r, 500));
      console.log('Step ' + i);  // Streams immediately to stdout
    }
"""


@pytest.mark.full  # it takes the thirty seconds that it is about
@pytest.mark.promise("M1", "X3")
@pytest.mark.timeout(180)
def test_example_1_a_long_task_is_handed_over_after_thirty_seconds(place: Place):
    wire = place.wire("2024-11-05")
    result = wire.call("execute", workingDirectory=str(place.folder), code=LONG)
    shown = text(result)
    assert re.match(r"Execution moved to async mode after 30(\.\d)? seconds\.", shown)
    assert "Current progress:" in shown and "] Starting long task..." in shown
    assert "] Progress: 27 seconds" in shown and "[Execution ID: " in shown
    execution_id = result["structuredContent"]["execution_id"]
    wire.data("output", execution_id=execution_id, wait_s=30)
    log = wire.call("execute", action="get_async_log", executionId=execution_id)
    assert "] Progress: 34 seconds" in text(log) and "Value: Done" in text(log)


@pytest.mark.promise("M1", "X7")
@pytest.mark.parametrize("code", [INTERACTIVE, INTERACTIVE.replace("readStdin(0)", "readStdin()")])
def test_example_2_an_interactive_session(place: Place, code: str):
    wire = place.wire(MODERN)
    result = wire.call("execute", workingDirectory=str(place.folder), code=code)
    assert "] Enter your name:" in text(result) and "It waits for input" in text(result)
    execution_id = result["structuredContent"]["execution_id"]
    sent = wire.call("execute", action="send_stdin", executionId=execution_id, stdinData="Alice")
    assert text(sent).startswith(f"Stdin data sent to execution {execution_id}: delivered.")
    assert "Hello, Alice!" in text(sent)


@pytest.mark.promise("M1", "X5")
def test_example_3_output_streams_while_it_runs(place: Place):
    wire = place.wire(MODERN)
    number = wire.ask(
        "tools/call",
        name="execute",
        arguments={"workingDirectory": str(place.folder), "code": STREAMING},
        _meta={"progressToken": 1},
    )
    first = wire.notice("notifications/progress")["message"]
    assert first.startswith("Step 0")
    assert number not in wire._answers
    result = wire.answer(number)
    steps = [line for line in text(result).split("\n") if line.startswith("Step")]
    assert steps == [f"Step {i}" for i in range(10)]
