"""Stdin: sent at any time, in order, seen when it is waited for; terminals on request."""

from __future__ import annotations

import hashlib

import pytest
from engine_help import (
    PATIENCE,
    cursor,
    ended,
    events_of,
    folded,
    number_after,
    output,
    require_program,
    word,
)

from tenuto import Engine, InvalidInput, NotRunning, State, WaitingFor
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


async def asked(engine: Engine, execution_id: str) -> None:
    """Wait until it waits for input."""
    snapshot = await engine.wait(execution_id, PATIENCE)
    assert snapshot.waiting_for is WaitingFor.INPUT, (snapshot.state, snapshot.output)


@pytest.mark.promise("X7")
async def test_input_may_be_sent_before_the_program_reads(engine: Engine) -> None:
    running = await engine.start(
        "import time; time.sleep(0.3); print([input(), input(), input()])", language="python"
    )
    assert [await engine.send(running, text) for text in "abc"] == ["queued"] * 3
    snapshot = await ended(engine, running)
    assert snapshot.output == "['a', 'b', 'c']\n"


@pytest.mark.promise("X7")
@pytest.mark.parametrize("n", range(5))
async def test_input_may_be_sent_in_the_very_moment_after_the_start(engine: Engine, n: int) -> None:
    running = await engine.start(command=["cat"])
    await engine.send(running, "early", eof=True)
    assert (await ended(engine, running)).output == "early\n"


@pytest.mark.promise("X7")
async def test_input_is_delivered_at_once_to_a_program_that_asks(
    engine: Engine, project: Project
) -> None:
    running = await engine.start("print('hello ' + input('name? '))", language="python")
    await asked(engine, running)
    assert not (await engine.show(running)).interactive
    assert await engine.send(running, "Ada") == "delivered"
    snapshot = await ended(engine, running)
    assert snapshot.output == "name? hello Ada\n"
    assert snapshot.interactive
    assert len(events_of(project, running, "became_interactive")) == 1
    assert [event["size"] for event in events_of(project, running, "input_sent")] == [4]


@pytest.mark.promise("X7")
async def test_an_answer_to_a_prompt_that_was_just_printed_is_delivered_or_queued(
    engine: Engine,
) -> None:
    """It may not be blocked yet in that moment; a second later nobody could tell the difference."""
    running = await engine.start("printf 'go? '; read x; echo $x", language="bash")
    await word(engine, running, "go?")
    assert await engine.send(running, "yes") in ("delivered", "queued")
    assert (await ended(engine, running)).output == "go? yes\n"


@pytest.mark.promise("X7")
async def test_a_hundred_sends_arrive_in_order(engine: Engine) -> None:
    running = await engine.start(command=["cat"])
    for n in range(100):
        assert await engine.send(running, f"line {n}") in ("delivered", "queued")
    await engine.send(running, "", eof=True)
    await ended(engine, running)
    expected = "".join(f"line {n}\n" for n in range(100))
    assert (await output(engine, running)).decode() == expected


@pytest.mark.promise("X7")
async def test_a_newline_is_added_unless_it_is_there_or_raw(engine: Engine) -> None:
    running = await engine.start(command=["cat"])
    await engine.send(running, "added")
    await engine.send(running, "there\n")
    await engine.send(running, b"raw \xff\x00", raw=True)
    await engine.send(running, "", eof=True)
    await ended(engine, running)
    assert await output(engine, running) == b"added\nthere\nraw \xff\x00"


@pytest.mark.promise("X7")
async def test_after_the_end_of_input_a_send_says_closed(engine: Engine) -> None:
    code = "cat; echo at the end; sleep 1000"
    running = await engine.start(code, language="bash")
    await asked(engine, running)
    assert await engine.send(running, "last", eof=True) == "delivered"
    await word(engine, running, "at the end")
    assert await engine.send(running, "too late") == "closed"
    assert (await output(engine, running)) == b"last\nat the end\n"


@pytest.mark.promise("X7")
async def test_a_program_that_closed_its_input_says_closed(engine: Engine) -> None:
    running = await engine.start("exec 0<&-; echo closed; sleep 1000", language="bash")
    await word(engine, running, "closed")
    assert await engine.send(running, "anyone?") == "closed"
    assert await engine.send(running, "anyone?") == "closed"


@pytest.mark.promise("X7")
async def test_sending_to_what_has_ended_is_refused(engine: Engine) -> None:
    snapshot = await engine.run(command=["true"])
    with pytest.raises(NotRunning):
        await engine.send(snapshot.id, "hello?")


READERS = {
    "python input": ("python", "print('[' + input() + ']')"),
    "python stdin": ("python", "import sys; print('[' + sys.stdin.readline().strip() + ']')"),
    "python thread": (
        "python",
        "import threading\nt = threading.Thread(target=lambda: print('[' + input() + ']'))\n"
        "t.start(); t.join()",
    ),
    "bash read": ("bash", 'read x; echo "[$x]"'),
    "bash child": ("bash", 'x=$(head -n1); echo "[$x]"'),
    "node readStdin": ("node", "console.log(`[${await readStdin()}]`)"),
}


@pytest.mark.promise("X7")
@pytest.mark.parametrize("reader", READERS)
async def test_a_program_blocked_on_input_is_seen_and_goes_on_when_it_comes(
    engine: Engine, project: Project, reader: str
) -> None:
    language, code = READERS[reader]
    if language == "node":
        require_program("node")
    running = await engine.start(code, language=language)
    await asked(engine, running)
    assert (await engine.list(running=True))[0].waiting_for is WaitingFor.INPUT
    assert await engine.send(running, "it") == "delivered"
    snapshot = await ended(engine, running)
    assert snapshot.output == "[it]\n"
    kinds = [str(move.state) for move in folded(project, running).transitions]
    assert kinds == ["queued", "running", "waiting", "running", "succeeded"]


@pytest.mark.promise("X7")
async def test_waiting_for_input_is_gone_while_it_works_and_back_when_it_asks_again(
    engine: Engine,
) -> None:
    code = "while read x; do echo working on $x; sleep 0.5; echo did $x; done"
    running = await engine.start(code, language="bash")
    await asked(engine, running)
    await engine.send(running, "one")
    assert not (await engine.show(running)).needs_input
    await word(engine, running, "working on one")
    assert (await engine.show(running)).state is State.RUNNING
    await word(engine, running, "did one")
    await asked(engine, running)


@pytest.mark.promise("X7")
async def test_a_program_that_asks_after_long_silence_is_seen(engine: Engine) -> None:
    """The longer it is silent the seldomer one looks; once it blocks, two looks follow closely."""
    running = await engine.start("sleep 2; read x", language="bash")
    await asked(engine, running)


@pytest.mark.promise("X7")
@pytest.mark.parametrize(
    "code",
    ["sleep 1000", "sleep 1000 | cat", "cat /dev/zero >/dev/null", "cat < <(sleep 1000)"],
)
async def test_a_program_that_waits_for_something_else_does_not_wait_for_input(
    engine: Engine, code: str
) -> None:
    snapshot = await engine.run(code, language="bash", wait=0.7)
    while snapshot.state is State.QUEUED:  # on a busy machine it takes its time to begin
        snapshot = await engine.wait(snapshot.id, 0.7)
    assert snapshot.waiting_for is None and snapshot.state is State.RUNNING


LOOPS = {
    "node readline": (
        "node",
        "require('readline').createInterface({input: process.stdin})"
        ".once('line', (x) => { console.log(`[${x}]`); process.exit(0); });",
    ),
    "python asyncio": (
        "python3",
        "import asyncio, sys\nasync def main():\n"
        "    loop = asyncio.get_running_loop(); come = loop.create_future()\n"
        "    loop.add_reader(0, lambda: come.done() or come.set_result(sys.stdin.readline()))\n"
        "    print('[' + (await come).strip() + ']')\nasyncio.run(main())",
    ),
    "python poll": (
        "python3",
        "import select, sys\nwaits = select.poll(); waits.register(0, select.POLLIN); waits.poll()\n"
        "print('[' + sys.stdin.readline().strip() + ']')",
    ),
}


@pytest.mark.promise("X7")
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", LOOPS)
async def test_an_event_loop_with_nothing_but_its_input_is_seen_to_wait(
    engine: Engine, name: str, terminal: bool
) -> None:
    program, code = LOOPS[name]
    require_program(program)
    running = await engine.start(
        command=[program, "-e" if program == "node" else "-c", code], pty=terminal
    )
    await asked(engine, running)
    assert await engine.send(running, "it") == "delivered"
    assert "[it]" in (await ended(engine, running)).output


BUSY_LOOPS = {
    "a server": (
        "node",
        "process.stdin.resume(); require('http').createServer().listen(0, '127.0.0.1',"
        " () => console.log('up'))",
    ),
    "a clock": ("node", "process.stdin.resume(); setInterval(() => {}, 50); console.log('up')"),
    "a child": (
        "node",
        "process.stdin.resume(); require('child_process').spawn('sleep', ['1000']);"
        "console.log('up')",
    ),
    "a timeout": (
        "python3",
        "import select\nwaits = select.poll(); waits.register(0, select.POLLIN); print('up', flush=True)"
        "\nwhile True: waits.poll(50)",
    ),
    "a socket": (
        "python3",
        "import select, socket\nwaits = select.epoll(); waits.register(0, select.EPOLLIN)\n"
        "listens = socket.create_server(('127.0.0.1', 0)); waits.register(listens, select.EPOLLIN)\n"
        "print('up', flush=True); waits.poll()",
    ),
    "a thread at work": (
        "python3",
        "import select, threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "waits = select.poll(); waits.register(0, select.POLLIN); print('up', flush=True); waits.poll()",
    ),
}


@pytest.mark.promise("X7")
@pytest.mark.parametrize("name", BUSY_LOOPS)
async def test_an_event_loop_that_something_else_may_wake_does_not_wait_for_input(
    engine: Engine, name: str
) -> None:
    program, code = BUSY_LOOPS[name]
    require_program(program)
    running = await engine.start(command=[program, "-e" if program == "node" else "-c", code])
    await word(engine, running, "up")
    snapshot = await engine.wait(running, 0.7)
    assert snapshot.waiting_for is None and snapshot.state is State.RUNNING
    await engine.kill(running)


@pytest.mark.promise("X7")
async def test_five_megabytes_pass_through_unchanged(engine: Engine) -> None:
    data = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(5 * 1024 * 1024 // 32))
    running = await engine.start(command=["cat"])
    assert await engine.send(running, data, raw=True, eof=True) in ("queued", "delivered")
    await ended(engine, running)
    assert await output(engine, running) == data


@pytest.mark.promise("X7")
async def test_what_a_program_does_not_take_stays_queued_and_ends_with_it(engine: Engine) -> None:
    running = await engine.start("sleep 0.5; head -c 5", language="bash")
    assert await engine.send(running, b"x" * 3_000_000, raw=True) == "queued"
    snapshot = await ended(engine, running)
    assert snapshot.state is State.SUCCEEDED and snapshot.output == "xxxxx"


@pytest.mark.promise("X7", "X8")
async def test_unread_input_does_not_disturb_what_was_left_behind(engine: Engine) -> None:
    """The queue's descriptor goes with the end; the next connection may get its number."""
    running = await engine.start("sleep 1000 & command sleep 0.5", language="bash")
    await engine.send(running, b"y" * 3_000_000, raw=True)
    snapshot = await ended(engine, running)
    assert [one.command for one in snapshot.left_behind] == ["sleep 1000"]
    shown = await engine.kill(running)
    assert not shown.left_behind


@pytest.mark.promise("X7")
async def test_input_is_not_recorded_on_the_tape(engine: Engine, project: Project) -> None:
    running = await engine.start("read -s password; echo ok", language="bash")
    await engine.send(running, "hunter2-hunter2")
    await ended(engine, running)
    with open(f"{project.folder(running)}/tape", "rb") as file:
        assert b"hunter2" not in file.read()


# Terminals

TTY = """
import os, sys, signal
print(f"tty={os.isatty(0)}{os.isatty(1)}{os.isatty(2)}", flush=True)
def size(*_):
    columns, rows = os.get_terminal_size(0)
    os.write(1, f"size={rows}x{columns};\\n".encode())  # print() takes no signal in the midst of it
signal.signal(signal.SIGWINCH, size)
size()
print("got " + input("name? "))
"""


@pytest.mark.promise("X7")
async def test_without_asking_there_is_no_terminal(engine: Engine) -> None:
    code = "import os; [os.isatty(fd) for fd in (0, 1, 2)]"
    assert (await engine.run(code, language="python")).value == [False, False, False]


@pytest.mark.promise("X7")
async def test_a_terminal_on_request_with_a_size_that_can_change(engine: Engine) -> None:
    running = await engine.start(TTY, language="python", pty=True)
    await word(engine, running, "size=24x80;")
    assert b"tty=TrueTrueTrue" in await output(engine, running)
    await engine.resize(running, 50, 132)
    await word(engine, running, "size=50x132;")
    await asked(engine, running)
    assert await engine.send(running, "Ada") == "delivered"
    snapshot = await ended(engine, running)
    assert snapshot.state is State.SUCCEEDED
    assert "got Ada" in (await output(engine, running)).decode()


@pytest.mark.promise("X7")
async def test_what_is_typed_is_not_output_and_lines_end_as_written(engine: Engine) -> None:
    running = await engine.start('read x; echo "<$x>"', language="bash", pty=True)
    await asked(engine, running)
    await engine.send(running, "secret")
    await ended(engine, running)
    assert await output(engine, running) == b"<secret>\n"


@pytest.mark.promise("X7")
async def test_a_terminal_takes_more_than_fits_into_it_at_once(engine: Engine) -> None:
    running = await engine.start(
        "sleep 0.3; wc -l; echo; echo 'n=7;'; sleep 1000", language="bash", pty=True
    )
    lines = b"".join(b"%06d: a line for the terminal\n" % n for n in range(10_000))
    await engine.send(running, lines, raw=True, eof=True)
    await word(engine, running, "/10000\\s/")
    assert await number_after(engine, running, "n") == 7


@pytest.mark.promise("X7", "X8")
async def test_the_end_of_a_terminal_program_ends_its_execution(engine: Engine) -> None:
    snapshot = await engine.run(command=["sh", "-c", "echo bye; exit 3"], pty=True)
    assert snapshot.exit_code == 3 and snapshot.output == "bye\n"
    running = await engine.start(command=["bash", "-i"], pty=True)
    await asked(engine, running)
    assert (await engine.kill(running)).state is State.KILLED


@pytest.mark.promise("X7")
async def test_the_interrupt_key_reaches_the_program_on_a_terminal(engine: Engine) -> None:
    code = "trap 'echo interrupted; exit 9' INT; echo ready; while true; do sleep 0.05; done"
    running = await engine.start(code, language="bash", pty=True)
    await word(engine, running, "ready")
    await engine.send(running, b"\x03", raw=True)
    snapshot = await ended(engine, running)
    assert snapshot.exit_code == 9 and "interrupted" in snapshot.output


@pytest.mark.promise("X7")
async def test_only_a_terminal_has_a_size(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    with pytest.raises(InvalidInput):
        await engine.resize(running, 10, 10)


@pytest.mark.promise("X7")
async def test_cat_is_a_conversation(engine: Engine) -> None:
    running = await engine.start(command=["cat"])
    snapshot = await engine.wait(running, PATIENCE)
    for text in ("one", "two", "three"):
        assert snapshot.needs_input
        assert await engine.send(running, text) == "delivered"
        after = cursor(snapshot)
        snapshot = await engine.wait(running, PATIENCE, after=after)
        while not snapshot.chunks:
            snapshot = await engine.wait(running, PATIENCE, until=text, after=after)
        assert snapshot.output == f"{text}\n"
