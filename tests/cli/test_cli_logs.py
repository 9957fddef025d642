import hashlib
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from tenuto.cli.safe import Tamed

pytestmark = pytest.mark.promise("U1", "X6")

BOTH = "echo one; echo two >&2; echo three; echo four >&2"


def ended(cli, *words):
    cli("run", *words)
    (execution_id,) = cli.ids()
    return execution_id


def test_each_stream_comes_out_where_it_went_in(cli):
    execution_id = ended(cli, "--lang", "bash", BOTH)
    done = cli("logs", execution_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\nthree\n", "two\nfour\n")
    assert cli("logs", execution_id, "--stream", "err").stdout == "two\nfour\n"
    assert cli("logs", "--stream", "out", execution_id).stdout == "one\nthree\n"


def test_a_part_by_lines_by_time_and_by_cursor(cli):
    execution_id = ended(cli, "--lang", "python", "for n in range(100): print(n)")
    assert cli("logs", execution_id, "-n", "2").stdout == "98\n99\n"
    assert cli("logs", execution_id, "-n", "0").stdout == ""
    assert cli("logs", execution_id, "-n", "all").stdout.count("\n") == 100
    assert cli("logs", execution_id, "-n", "3", "--stream", "out").stdout == "97\n98\n99\n"
    assert cli("logs", execution_id, "-n", "3", "--since", "1h").stdout == "97\n98\n99\n"
    assert cli("logs", execution_id, "--since", "1h").stdout.count("\n") == 100
    assert cli("logs", execution_id, "--since", "2100-01-01").stdout == ""
    chunks = cli.lines("logs", execution_id)
    assert "".join(chunk["text"] for chunk in chunks).count("\n") == 100
    cursor = chunks[0]["seq"]
    rest = cli.lines("logs", execution_id, "--after", str(cursor))
    assert rest == chunks[1:]
    assert cli("logs", execution_id, "-n", "few").returncode == 2


def test_timestamps_stand_before_every_line(cli):
    execution_id = ended(cli, "--", "printf", "a\\nb\\nunfinished")
    lines = cli("logs", "-t", execution_id).stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["a", "b", "unfinished"]
    assert all(line[10] == "T" and line.split(" ")[0].endswith("Z") for line in lines)


@pytest.mark.promise("X5")
def test_follow_prints_what_was_and_what_comes_until_the_end(cli):
    code = "print('was')\nprint(input())\nraise SystemExit(3)"
    execution_id = cli.start("--lang", "python", code)
    process = cli.popen("logs", "-f", execution_id)
    assert process.stdout.readline() == b"was\n"
    assert cli("send", execution_id, "comes").returncode == 0
    out, _ = process.communicate(timeout=50)
    assert out == b"comes\n"
    assert process.returncode == 0


def test_following_json_is_a_line_for_each_chunk(cli):
    execution_id = cli.start("--", "sh", "-c", "echo first; read x; printf '\\377'")
    process = cli.popen("logs", "-f", "--json", execution_id)
    first = json.loads(process.stdout.readline())
    assert set(first) == {"seq", "time", "stream", "text"}
    assert (first["stream"], first["text"]) == ("out", "first\n")
    cli("send", execution_id, "")
    second = json.loads(process.stdout.readline())
    assert second["base64"] == "/w=="
    assert second["seq"] > first["seq"]
    process.communicate(timeout=50)


def test_ctrl_c_stops_reading_only(cli):
    execution_id = cli.start("--", "sh", "-c", "echo here; exec sleep 100")
    process = cli.popen("logs", "-f", execution_id)
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert f"still running: {execution_id}" in err.decode()
    assert cli.state(execution_id) == "running"


def test_who_leaves_is_told_where_the_output_goes_on(cli):
    execution_id = cli.start("--", "sh", "-c", "echo one; read x; echo two; exec sleep 100")
    process = cli.popen("logs", "-f", execution_id)
    assert process.stdout.readline() == b"one\n"
    cli("send", execution_id, "")
    assert process.stdout.readline() == b"two\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    after = re.search(r"--after (\d+)", err.decode())
    assert after is not None
    assert cli("logs", "--after", after[1], execution_id).stdout == ""


def test_following_from_no_lines_at_all_shows_only_what_comes(cli):
    execution_id = cli.start("--", "sh", "-c", "echo was; read x; echo comes")
    assert cli("wait", "--until", "was", execution_id).returncode == 0
    process = cli.popen("logs", "-f", "-n", "0", execution_id)
    assert cli("send", execution_id, "").returncode == 0
    assert process.communicate(timeout=50)[0].removeprefix(b"comes\n") == b""


def test_twenty_megabytes_come_out_whole_in_little_memory(cli):
    code = "import sys\nfor n in range(20): sys.stdout.write(f'{n:07}'.ljust(1024, 'x') * 1024)"
    execution_id = ended(cli, "--lang", "python", code)
    text = "".join(f"{n:07}".ljust(1024, "x") * 1024 for n in range(20))
    expected = hashlib.md5(text.encode()).hexdigest()
    for words in (["logs", execution_id], ["logs", "-f", execution_id]):
        process = cli.popen(*words)
        digest = hashlib.md5()
        while data := process.stdout.read(1 << 20):
            digest.update(data)
        assert process.wait(timeout=50) == 0
        assert digest.hexdigest() == expected
    peak = peak_memory(cli, "logs", execution_id)
    small = peak_memory(cli, "logs", execution_id, "-n", "1")
    assert peak - small < 12 * 1024 * 1024


def peak_memory(cli, *words):
    """Return the largest resident size of one command, asked of the kernel."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen([*cli.argv, *words], cwd=cli.folder, env=cli.env, stdout=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_a_reader_that_leaves_is_no_error(cli):
    execution_id = ended(cli, "--", "sh", "-c", "yes | head -c 3000000")
    process = cli.popen("logs", execution_id)
    process.stdout.read(4)
    process.stdout.close()
    assert process.wait(timeout=50) == 141
    assert process.stderr.read() == b""


def test_on_a_terminal_only_colours_pass(cli):
    execution_id = ended(cli, "--", "printf", r"\033[31mred\033[0m \033[2J\033]0;title\007\377\n")
    raw = cli("logs", execution_id).stdout.encode("utf-8", "surrogateescape")
    assert raw == b"\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07\xff\n"
    shown = on_a_terminal(cli, "logs", execution_id)
    assert shown == "\x1b[31mred\x1b[0m ^[[2J^[]0;title^G\ufffd\r\n"


def on_a_terminal(cli, *words):
    """Return what a command writes to a terminal that is its stdout."""
    master, slave = pty.openpty()
    process = subprocess.Popen([*cli.argv, *words], cwd=cli.folder, env=cli.env, stdout=slave)
    os.close(slave)
    parts = []
    try:
        while data := os.read(master, 65536):
            parts.append(data)
    except OSError:  # the other side is closed
        pass
    os.close(master)
    process.wait(timeout=50)
    return b"".join(parts).decode()


def test_sequences_cut_in_two_are_put_together():
    tamed = Tamed()
    assert tamed.feed(b"a\x1b") == b"a"
    assert tamed.feed(b"[3") == b""
    assert tamed.feed(b"1mred\xc3") == b"\x1b[31mred"
    assert tamed.feed(b"\xa9\x1b[") == "é".encode()
    assert tamed.feed(b"", last=True) == b"^[["
    assert Tamed().feed("\x9b2J\x7f\x00".encode()) == b"<9b>2J^?^@"


def test_without_an_id_the_only_running_one_is_meant(cli):
    done = cli("logs")
    assert done.returncode == 1
    assert "nothing is running" in done.stderr
    first = cli.start("--", "sh", "-c", "echo hello; exec sleep 100")
    cli.wait_for(first, "hello")
    assert cli("logs").stdout == "hello\n"
    second = cli.start("--", "sleep", "100")
    done = cli("logs")
    assert done.returncode == 1
    assert first[:18] in done.stderr
    assert second[:18] in done.stderr
