import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

pytestmark = pytest.mark.promise("U1", "X7")

ECHO = "import sys\nfor line in sys.stdin: print('got', repr(line), flush=True)\nprint('end')"


def own_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, cli, *words):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(self.master, (30, 100))
        self.process = subprocess.Popen(
            [*cli.argv, *words], cwd=cli.folder, env=cli.env, stdin=slave, stdout=slave,
            stderr=slave, start_new_session=True,
            preexec_fn=own_terminal,  # noqa: PLW1509  the tests have one thread
        )  # fmt: skip
        os.close(slave)
        cli.started.append(self.process)
        self.seen = b""

    def type(self, keys):
        os.write(self.master, keys)

    def until(self, text):
        """Read until a text stands there, and return everything up to it."""
        limit = time.monotonic() + 50
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], limit - time.monotonic())
            assert ready, self.seen
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            assert data, self.seen
            self.seen += data
        before, _, self.seen = self.seen.partition(text)
        return before

    def end(self):
        """Return the exit code."""
        code = self.process.wait(timeout=50)
        os.close(self.master)
        return code


def test_send_says_what_became_of_it(cli):
    execution_id = cli.start("--lang", "python", ECHO)
    assert cli("wait", execution_id).returncode == 75  # it waits for input
    done = cli("send", execution_id, "one")
    assert (done.returncode, done.stdout) == (0, "delivered\n")
    assert cli("send", execution_id, "-", input="two\nthree").returncode == 0
    assert cli("send", execution_id, "--raw", "fo").returncode == 0
    document = cli.json("send", "--eof", execution_id, "ur")
    assert document == {"schema": 1, "id": execution_id, "fate": document["fate"], "bytes": 3}
    assert cli("wait", execution_id).returncode == 0
    lines = cli("logs", execution_id).stdout.splitlines()
    assert lines == [r"got 'one\n'", r"got 'two\n'", r"got 'three\n'", r"got 'four\n'", "end"]
    done = cli("send", execution_id, "too late")
    assert done.returncode == 1
    assert "takes no more input" in done.stderr


def test_sending_to_a_closed_stdin_is_refused(cli):
    execution_id = cli.start("--", "sh", "-c", "read x; exec sleep 100")
    assert cli("send", execution_id, "--eof").returncode == 0
    done = cli("send", execution_id, "more")
    assert (done.returncode, done.stdout) == (1, "closed\n")
    assert "closed its stdin" in done.stderr
    assert cli("send", execution_id).returncode == 2


def test_attach_shows_the_last_lines_and_forwards_a_pipe(cli):
    execution_id = cli.start("--lang", "python", "print(*range(20), sep='\\n')\n" + ECHO)
    cli.wait_for(execution_id, "19")
    done = cli("attach", execution_id, input="hello\n")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [*map(str, range(10, 20)), r"got 'hello\n'", "end"]
    done = cli("attach", execution_id)
    assert done.returncode == 1
    assert "has ended: succeeded" in done.stderr


def test_attach_with_no_input_only_looks(cli):
    execution_id = cli.start("--lang", "python", "print('here')\n" + ECHO)
    process = cli.popen("attach", execution_id)
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert f"still running: {execution_id}" in err.decode()
    assert cli.json("show", execution_id)["interactive"] is False
    process = cli.popen("attach", "--json", execution_id)
    first = process.stdout.readline()
    cli("send", execution_id, "--eof")
    out = process.stdout.read()  # communicate() would miss what readline() has read ahead
    *chunks, last = [json.loads(line) for line in (first + out).splitlines()]
    assert "".join(chunk["text"] for chunk in chunks) == "here\nend\n"
    assert last["state"] == "succeeded"


def test_attach_at_a_terminal_sends_lines_and_detaches_by_keys(cli):
    execution_id = cli.start("--lang", "python", "print('here')\n" + ECHO)
    terminal = Terminal(cli, "attach", execution_id)
    terminal.until(b"Ctrl-P Ctrl-Q detaches")
    terminal.type(b"typed\n")
    terminal.until(rb"got 'typed\n'")
    terminal.type(b"\x10\x11")
    terminal.until(b"still running: " + execution_id.encode())
    assert terminal.end() == 0
    assert cli.state(execution_id) in ("running", "waiting")
    terminal = Terminal(cli, "attach", execution_id)
    terminal.until(b"detaches")
    terminal.type(b"\x03")
    terminal.until(b"still running: ")
    assert terminal.end() == 130
    terminal = Terminal(cli, "attach", execution_id)
    terminal.until(b"detaches")
    terminal.type(b"\x04")
    terminal.until(b"succeeded")
    assert terminal.end() == 0


def test_attach_to_a_terminal_passes_keys_and_the_window_size(cli):
    code = (
        "import os, signal, sys, tty\ntty.setraw(0)\n"
        "def size(*_): print('size', *os.get_terminal_size(0), end='\\r\\n', flush=True)\n"
        "signal.signal(signal.SIGWINCH, size)\nprint('up', end='\\r\\n', flush=True)\n"
        "key = b''\nwhile key != b'q':\n    key = os.read(0, 1)\n"
        "    print('key', key.hex(), end='\\r\\n', flush=True)\n"
    )
    execution_id = cli.start("--pty", "--", "python3", "-c", code)
    cli.wait_for(execution_id, "up")
    terminal = Terminal(cli, "attach", execution_id)
    terminal.until(b"size 100 30")
    terminal.type(b"\x03")
    terminal.until(b"key 03")
    terminal.type(b"\x10a")
    terminal.until(b"key 61")
    termios.tcsetwinsize(terminal.master, (40, 120))
    terminal.until(b"size 120 40")
    terminal.type(b"\x10")
    terminal.type(b"\x11")
    terminal.until(b"still running: ")
    assert terminal.end() == 0
    terminal = Terminal(cli, "attach", execution_id)
    terminal.until(b"key")
    terminal.type(b"q")
    terminal.until(b"succeeded")
    assert terminal.end() == 0


def test_an_interactive_run_at_a_terminal_is_like_running_it_there(cli):
    terminal = Terminal(cli, "run", "-i", "--pty", "--", "sh")
    terminal.type(b"stty size; tty | cut -c1-8\n")
    terminal.until(b"30 100")
    terminal.until(b"/dev/pts")
    terminal.type(b"exit 5\n")
    terminal.until(b"exit code 5")
    assert terminal.end() == 5


def test_a_program_at_a_terminal_gets_its_terminal_back_unchanged(cli):
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    execution_id = cli.start("--pty", "--", "cat")
    process = cli.popen("attach", execution_id, stdin=slave, stdout=slave, stderr=slave)
    seen = b""
    while b"detaches" not in seen:
        seen += os.read(master, 4096)
    os.write(master, b"ready?\n")
    while b"ready?" not in seen:
        seen += os.read(master, 4096)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=50) == 0
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
