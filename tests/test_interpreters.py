"""The runners, with the real interpreters: the test plays the channel's other end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tenuto.core.errors import InterpreterMissing, InvalidInput
from tenuto.interpreters import LANGUAGES, command_for, language_of, resolve_program
from tenuto.interpreters.probing import probe

if TYPE_CHECKING:
    from pathlib import Path

BOUND = 30.0


def require(language: str) -> None:
    """Skip without the language's program, unless everything must be there."""
    try:
        command_for(language, "", os.environ)
    except InterpreterMissing as error:
        if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
            pytest.fail(str(error))
        pytest.skip(str(error))


class Ended(NamedTuple):
    status: int
    out: str
    err: str
    messages: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    @property
    def value(self) -> Any:
        (message,) = self.of("value")
        return message["json"]

    @property
    def shown(self) -> str:
        (message,) = self.of("value")
        return message["repr"]

    @property
    def raised(self) -> dict[str, Any]:
        (message,) = self.of("raised")
        return message


class Live:
    """A runner at work: its pipes, and this end of its channel."""

    def __init__(self, language: str, code: str, cwd: Path) -> None:
        require(language)
        command = command_for(language, code, os.environ)
        ours, theirs = socket.socketpair()
        env = {**os.environ, **command.env, "TENUTO_CHANNEL": "3"}
        # at 3, as a keeper puts it: node keeps only low descriptors from its children
        place = f'exec 3<&{theirs.fileno()}-; exec "$@"' if theirs.fileno() != 3 else 'exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", place, "bash", *command.argv],
            cwd=cwd,
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.settimeout(BOUND)
        self.socket = ours
        self.lines = ours.makefile("rb")
        self.messages: list[dict[str, Any]] = []
        data = code.encode()
        ours.sendall(struct.pack("<I", len(data)) + data)

    def until(self, kind: str) -> None:
        """Take messages until one of this kind has come."""
        while not self.messages or self.messages[-1]["type"] != kind:
            self.messages.append(json.loads(self.lines.readline()))

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end(self, stdin: str = "") -> Ended:
        taker = threading.Thread(target=self._take)
        taker.start()
        try:
            out, err = self.process.communicate(stdin.encode(), BOUND)
        finally:
            self.process.kill()
            self.process.wait()
            taker.join(BOUND)
            self.lines.close()
            self.socket.close()
        return Ended(self.process.returncode, out.decode(), err.decode(), self.messages)

    def _take(self) -> None:
        for line in self.lines:
            assert len(line) <= 16 * 1024 * 1024
            self.messages.append(json.loads(line))


def run(language: str, code: str, cwd: Path, stdin: str = "") -> Ended:
    return Live(language, code, cwd).end(stdin)


# Code that runs exactly once

APPEND = {
    "python": "open('count', 'a').write('x')",
    "node": "require('fs').appendFileSync('count', 'x')",
    "deno": "Deno.writeTextFileSync('count', 'x', {append: true})",
}
THROW = {
    "python": "raise ValueError('no')",
    "node": "throw new Error('no')",
    "deno": "throw new Error('no')",
}


@pytest.mark.promise("X13")
@pytest.mark.parametrize("language", APPEND)
@pytest.mark.parametrize("fails", [False, True])
def test_code_runs_exactly_once_even_when_it_fails(
    language: str, fails: bool, tmp_path: Path
) -> None:
    code = APPEND[language] + "\n" + (THROW[language] if fails else "")
    ended = run(language, code, tmp_path)
    assert (tmp_path / "count").read_text() == "x"
    assert ended.status == (1 if fails else 0)
    assert len(ended.of("raised")) == fails


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 3\nx", 3),
        ("def f(): return [1, {'a': None}]\nf()", [1, {"a": None}]),
        ("'é\\n日本😀'", "é\n日本😀"),
        ("2 ** 200", 2**200),
        ("-0.5", -0.5),
        ("import asyncio\nasync def f(): return 7\nt = asyncio.create_task(f())\nawait t", 7),
        ("from __future__ import annotations\nTrue", True),
        ("\ufeff'bom'", "bom"),
    ],
)
def test_python_gives_the_value_of_the_last_expression(
    code: str, value: object, tmp_path: Path
) -> None:
    assert run("python", code, tmp_path).value == value


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("float('nan')", "nan"),
        ("[float('inf')]", "[inf]"),
        ("(1, 2)", "(1, 2)"),
        ("{1: 2}", "{1: 2}"),
        ("'\\ud800'", "'\\ud800'"),
        ("b'x'", "b'x'"),
        ("a = []; a.append(a); a", "[[...]]"),
        (
            "class A:\n  def __repr__(self): raise OSError\nA()",
            "<A object: repr() raised OSError>",
        ),
    ],
)
def test_python_shows_a_value_that_json_cannot_hold(code: str, shown: str, tmp_path: Path) -> None:
    assert run("python", code, tmp_path).shown == shown


@pytest.mark.promise("X13")
@pytest.mark.parametrize("code", ["None", "x = 1", "", "print('a')", "if 1:\n  2"])
def test_python_sends_no_value_when_there_is_none(code: str, tmp_path: Path) -> None:
    ended = run("python", code, tmp_path)
    assert (ended.status, ended.messages) == (0, [])


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("const x = 3\nx;;", 3),
        ("return 5", 5),
        ("({a: [null, 'é日😀', 1.5]})", {"a": [None, "é日😀", 1.5]}),
        ("null", None),
        ("await Promise.resolve(7)", 7),
        ("(async () => 8)()", 8),
        ("(1, 2)", 2),
        ("export default {a: 1};", {"a": 1}),
        ("foo()\nexport const b = 1\nfunction foo() {}\n;[b].map(x => x + 1)", [2]),
        ("with ({z: 4}) { var q = z }\nq", 4),
        ("#!/usr/bin/env node\nthis === exports && require.main === module", True),
        ("export {}; this === undefined", True),
        ("'x' // comment", "x"),
        ("Number.MAX_SAFE_INTEGER", 2**53 - 1),
        ("1e300", 1e300),
        ("const require = 1, __dirname = 2; require + __dirname", 3),
    ],
)
def test_node_gives_the_value_of_the_last_expression(
    code: str, value: object, tmp_path: Path
) -> None:
    assert run("node", code, tmp_path).value == value


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("NaN", "NaN"),
        ("-0", "-0"),
        ("10n ** 20n", "100000000000000000000n"),
        ("2 ** 53", "9007199254740992"),
        ("[undefined]", "[ undefined ]"),
        ("[,1]", "[ <1 empty item>, 1 ]"),
        ("new Map([[1, 2]])", "Map(1) { 1 => 2 }"),
        ("(function f() {})", "[Function: f]"),
        ("const a = {}; a.a = a; a", "<ref *1> { a: [Circular *1] }"),
        ("({get x() { return 1 }})", "{ x: [Getter] }"),
    ],
)
def test_node_shows_a_value_that_json_cannot_hold(code: str, shown: str, tmp_path: Path) -> None:
    assert run("node", code, tmp_path).shown == shown


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    "code", ["undefined", "let x = 1", "", "for (;;) break", "new Promise(() => {})"]
)
def test_node_sends_no_value_when_there_is_none(code: str, tmp_path: Path) -> None:
    ended = run("node", code, tmp_path)
    assert (ended.status, ended.messages) == (0, [])


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "'x' * (17 << 20)"), ("node", "'x'.repeat(17 << 20)")],
)
def test_a_giant_value_is_replaced_by_a_note(language: str, code: str, tmp_path: Path) -> None:
    assert run(language, code, tmp_path).shown.startswith("value too large (178")


@pytest.mark.parametrize(
    ("language", "code"), [("python", "'x' * (15 << 20)"), ("node", "'x'.repeat(15 << 20)")]
)
def test_a_big_value_arrives_whole(language: str, code: str, tmp_path: Path) -> None:
    assert len(run(language, code, tmp_path).value) == 15 << 20


# Where the code runs


@pytest.mark.promise("X13")
def test_python_imports_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("answer = 42")
    code = "import sys, neighbour\n[neighbour.answer, sys.argv, sys.path[0], __name__]"
    assert run("python", code, tmp_path).value == [42, ["<tenuto>"], "", "__main__"]


def test_a_module_of_the_user_does_not_break_the_runner(tmp_path: Path) -> None:
    for name in ("token.py", "json.py", "traceback.py", "linecache.py", "ast.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    assert run("python", "{'a': 'b'}", tmp_path).value == {"a": "b"}
    ended = run("python", "1/0", tmp_path)
    assert "    1/0\n" in ended.err
    assert ended.raised["name"] == "ZeroDivisionError"


def test_python_code_is_a_real_main_module(tmp_path: Path) -> None:
    code = (
        "import dataclasses, inspect, pickle\n"
        "@dataclasses.dataclass\nclass A:\n  x: int = 1\n"
        "def f():\n  return 'source'\n"
        "[pickle.loads(pickle.dumps(A())).x, inspect.getsource(f)]"
    )
    assert run("python", code, tmp_path).value == [1, "def f():\n  return 'source'\n"]


@pytest.mark.promise("X13")
def test_node_imports_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "lib.mjs").write_text(
        "export const a = 1, c = 2; export default 7; globalThis.n = 1"
    )
    (tmp_path / "old.cjs").write_text("module.exports = {k: 5}")
    (tmp_path / "data.json").write_text('{"j": 6}')
    pack = tmp_path / "node_modules" / "pack"
    pack.mkdir(parents=True)
    (pack / "index.js").write_text("exports.p = 8")
    code = """hoisted(a)
import d, {a, c as b} from './lib.mjs'
import * as fs from 'node:fs'
import './lib.mjs'
import old from './old.cjs'
import data from './data.json' with {type: 'json'}
import {p} from "pack"
import e, * as all from './lib.mjs'
export {a as z} from './lib.mjs'
export * from './lib.mjs'
export function hoisted() {}
const late = await import('./lib.mjs')
;[d, a, b, typeof fs.readFileSync, n, old.k, data.j, p, e, all.c, late.c, require('./old.cjs').k,
  import.meta.dirname === process.cwd(), import.meta.filename === __filename,
  new URL('.', import.meta.url).pathname === __dirname + '/',
  import.meta.resolve('./lib.mjs').slice(-8)]"""
    ended = run("node", code, tmp_path)
    assert ended.err == ""
    assert ended.value == [
        7,
        1,
        2,
        "function",
        1,
        5,
        6,
        8,
        7,
        2,
        2,
        5,
        True,
        True,
        True,
        "/lib.mjs",
    ]


@pytest.mark.promise("X13")
def test_deno_takes_typescript_and_imports_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "lib.ts").write_text("export const a: number = 42;")
    code = (
        "import { a } from './lib.ts';\nenum E { B = 2 }\nconst x: number = a;\n"
        "console.log(x, E.B, (await import('./lib.ts')).a);"
    )
    ended = run("deno", code, tmp_path)
    assert (ended.status, ended.out, ended.messages) == (0, "42 2 42\n", [])


# Errors


@pytest.mark.promise("X12")
def test_an_uncaught_python_error_shows_only_the_users_frames(tmp_path: Path) -> None:
    ended = run("python", "def f():\n    raise ValueError('é')\n\nf()", tmp_path)
    assert ended.status == 1
    assert ended.raised == {"type": "raised", "name": "ValueError", "message": "é", "line": 2}
    assert ended.err.startswith('Traceback (most recent call last):\n  File "<tenuto>", line 4')
    assert "raise ValueError('é')" in ended.err
    assert "runner" not in ended.err


@pytest.mark.promise("X12")
def test_an_error_below_a_python_await_shows_no_event_loop(tmp_path: Path) -> None:
    ended = run("python", "async def f(): 1/0\n\nawait f()", tmp_path)
    assert ended.raised["line"] == 1
    assert "asyncio" not in ended.err and "runner" not in ended.err


@pytest.mark.promise("X12")
def test_an_uncaught_node_error_shows_only_the_users_frames(tmp_path: Path) -> None:
    ended = run("node", "function f() {\n  throw new TypeError('é')\n}\nf()", tmp_path)
    assert ended.status == 1
    assert ended.raised == {"type": "raised", "name": "TypeError", "message": "é", "line": 2}
    assert "at f (<tenuto>:2:9)" in ended.err
    assert "<tenuto>:4:1" in ended.err
    assert "node:" not in ended.err and "runner" not in ended.err


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("code", "name", "line"),
    [
        ("\nsetTimeout(() => {\n throw new RangeError('t') })", "RangeError", 3),
        ("\nPromise.reject(new RangeError('t'))", "RangeError", 2),
        ("throw null", "null", None),
        ("\n\nimport x from './missing.mjs'", "Error", 3),
        ("\nimport {nope} from 'fs'", "SyntaxError", 2),
        ("require('fs').readFileSync('missing')", "Error", 1),
        ("await new Promise(() => {})", "Error", None),
    ],
)
def test_node_reports_what_nobody_caught(
    code: str, name: str, line: int | None, tmp_path: Path
) -> None:
    ended = run("node", code, tmp_path)
    assert ended.status != 0
    assert (ended.raised["name"], ended.raised.get("line")) == (name, line)
    assert ended.err


def test_a_node_program_may_handle_its_own_uncaught_errors(tmp_path: Path) -> None:
    code = (
        "process.on('uncaughtException', e => console.log('mine', e.message)); throw new Error('x')"
    )
    ended = run("node", code, tmp_path)
    assert (ended.status, ended.out, ended.messages) == (0, "mine x\n", [])


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("code", "line"), [("\nthrow new Error('x')", 2), ("\n\nsetTimeout(() => { throw 1 })", None)]
)
def test_deno_reports_what_nobody_caught(code: str, line: int | None, tmp_path: Path) -> None:
    ended = run("deno", code, tmp_path)
    assert ended.status == 1
    assert ended.raised.get("line") == line
    assert ended.err and "runner" not in ended.err


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    ("language", "code", "line", "mark"),
    [
        ("python", "x = 1\ny = = 2\n", 2, "    y = = 2\n        ^"),
        ("python", "x = 1\nreturn 2", 2, "    return 2\n"),
        (
            "node",
            "let x = 1\nlet y = ;\n",
            2,
            "let y = ;\n        ^\nSyntaxError: Unexpected token",
        ),
        ("node", "import x from 'fs'\nlet y = ;\n", 2, "let y = ;\n        ^"),
        ("node", "}); console.log('out'); (async () => {", 1, "^"),
        ("deno", "let x = 1;\nlet y = ;\n", 2, "SyntaxError"),
    ],
)
def test_a_syntax_error_names_its_line(
    language: str, code: str, line: int, mark: str, tmp_path: Path
) -> None:
    ended = run(language, code, tmp_path)
    assert (ended.status, ended.out) == (1, "")
    assert (ended.raised["name"], ended.raised["line"]) == ("SyntaxError", line)
    assert mark in ended.err


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    for language, code in [
        ("python", "raise OSError('é' * 9999)"),
        ("node", "throw new Error('é'.repeat(9999))"),
    ]:
        assert run(language, code, tmp_path).raised["message"] == "é" * 2048


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("language", "code", "status", "err"),
    [
        ("python", "import sys\nsys.exit(7)", 7, ""),
        ("python", "raise SystemExit('bye')", 1, "bye\n"),
        ("python", "raise SystemExit", 0, ""),
        ("node", "process.exit(7)", 7, ""),
        ("node", "process.exitCode = 3", 3, ""),
        ("node", "setTimeout(() => process.exit(0)); await new Promise(() => {})", 0, ""),
        ("deno", "Deno.exit(7)", 7, ""),
    ],
)
def test_the_exit_code_is_the_programs_own(
    language: str, code: str, status: int, err: str, tmp_path: Path
) -> None:
    ended = run(language, code, tmp_path)
    assert (ended.status, ended.err, ended.of("raised")) == (status, err, [])


def test_a_python_thread_that_fails_does_not_fail_the_program(tmp_path: Path) -> None:
    code = (
        "import atexit, threading\natexit.register(print, 'atexit')\n"
        "t = threading.Thread(target=lambda: 1/0)\nt.start()\n'value'"
    )
    ended = run("python", code, tmp_path)
    assert (ended.status, ended.out, ended.value) == (0, "atexit\n", "value")
    assert "ZeroDivisionError" in ended.err


@pytest.mark.promise("X12")
def test_an_interrupted_python_program_dies_by_the_signal(tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)"
    ended = run("python", code, tmp_path)
    assert (ended.status, ended.err, ended.messages) == (-signal.SIGINT, "", [])


def test_a_fork_does_not_send_the_value_twice(tmp_path: Path) -> None:
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'value'"
    assert run("python", code, tmp_path).value == "value"


def test_node_sends_its_value_before_its_timers_are_done(tmp_path: Path) -> None:
    code = "setTimeout(async () => console.log(await readStdin())); 'value'"
    live = Live("node", code, tmp_path)
    live.until("value")
    assert live.process.poll() is None
    assert live.end("late\n").out == "late\n"


# The channel


@pytest.mark.promise("X13")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import subprocess\nprint(subprocess.run('ls -l /proc/self/fd; env', shell=True,"
            " close_fds=False, capture_output=True, text=True).stdout)",
        ),
        (
            "node",
            "console.log(require('child_process').execSync('ls -l /proc/self/fd >&2; env >&2',"
            " {stdio: 'inherit'}))",
        ),
        (
            "deno",
            "new Deno.Command('sh', {args: ['-c', 'ls -l /proc/self/fd; env'], stdout: 'inherit'})"
            ".outputSync()",
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_do_not_inherit_the_channel(language: str, code: str, tmp_path: Path) -> None:
    ended = run(language, code, tmp_path)
    listing = ended.out + ended.err
    assert "/proc/" in listing and "PATH=" in listing
    assert "socket:" not in listing
    assert "TENUTO_CHANNEL" not in listing


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import signal\nsignal.signal(13, signal.SIG_DFL)\ninput()\nprint('on')\n'x' * 9",
        ),
        ("node", "await readStdin(); console.log('on'); 'x'"),
        ("deno", "await readStdin(); console.log('on')"),
    ],
)
def test_a_peer_that_left_does_not_matter(language: str, code: str, tmp_path: Path) -> None:
    live = Live(language, code, tmp_path)
    if language != "python":
        live.until("reading")
    live.socket.shutdown(socket.SHUT_RD)
    ended = live.end("go\n")
    assert (ended.status, ended.out) == (0, "on\n")


@pytest.mark.parametrize("language", ["python", "node", "deno"])
def test_a_runner_without_its_code_says_so(language: str, tmp_path: Path) -> None:
    require(language)
    command = command_for(language, "", os.environ)
    ended = subprocess.run(command.argv, capture_output=True, timeout=BOUND, check=False)
    assert ended.returncode == 125
    assert b"the code did not arrive" in ended.stderr


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys\nsys.stdout.write('now')\ninput()"),
        ("node", "process.stdout.write('now'); await readStdin()"),
        ("deno", "Deno.stdout.writeSync(new TextEncoder().encode('now')); await readStdin()"),
    ],
)
def test_output_is_not_held_back(language: str, code: str, tmp_path: Path) -> None:
    live = Live(language, code, tmp_path)
    assert live.process.stdout
    assert os.read(live.process.stdout.fileno(), 100) == b"now"
    assert live.end("go\n").status == 0


# Standard input


@pytest.mark.promise("X7")
@pytest.mark.parametrize(("language", "show"), [("node", "console.log"), ("deno", "console.log")])
def test_readers_are_served_in_order_until_the_end(
    language: str, show: str, tmp_path: Path
) -> None:
    code = f"""const both = await Promise.all([readStdin('ignored?'), readStdin()]);
{show}(JSON.stringify([...both, await readStdin(), await readStdin(), await readStdin()]))"""
    ended = run(language, code, tmp_path, "é\n\nthird\nlast")
    assert json.loads(ended.out) == ["é", "", "third", "last", None]
    kinds = [message["type"] for message in ended.messages]
    assert kinds == ["reading", "read"] * (len(kinds) // 2)


@pytest.mark.promise("X7")
@pytest.mark.parametrize("language", ["node", "deno"])
def test_waiting_for_input_is_told(language: str, tmp_path: Path) -> None:
    code = "console.log('got ' + await readStdin()); console.log('got ' + await readStdin())"
    live = Live(language, code, tmp_path)
    for text in ("one\n", "two\n"):
        live.until("reading")
        live.send(text)
        live.until("read")
    assert live.end().out == "got one\ngot two\n"


@pytest.mark.promise("X7")
@pytest.mark.parametrize(
    ("language", "code"),
    [("node", "1"), ("node", "await readStdin()"), ("deno", "1"), ("deno", "await readStdin()")],
)
def test_open_stdin_does_not_keep_a_program_alive(language: str, code: str, tmp_path: Path) -> None:
    live = Live(language, code, tmp_path)
    live.send("line\nrest\n")
    assert live.process.wait(BOUND) == 0
    live.end()


@pytest.mark.promise("X7")
def test_process_stdin_is_left_to_a_program_that_uses_it(tmp_path: Path) -> None:
    code = "let s = ''; for await (const part of process.stdin) s += part; s"
    ended = run("node", code, tmp_path, "a\nb")
    assert (ended.value, len(ended.messages)) == ("a\nb", 1)


@pytest.mark.promise("X7")
def test_python_input_reads_lines(tmp_path: Path) -> None:
    assert run("python", "[input(), input()]", tmp_path, "a\né\n").value == ["a", "é"]


# Finding programs


@pytest.mark.promise("X13")
def test_bash_runs_code_even_if_it_begins_with_a_dash(tmp_path: Path) -> None:
    for code, out in [("echo $((1+1))", "2\n"), ("-x 2>/dev/null; echo on", "on\n")]:
        command = command_for("bash", code, os.environ)
        assert not command.channel
        ended = subprocess.run(
            command.argv, capture_output=True, text=True, timeout=BOUND, check=True
        )
        assert ended.stdout == out


def test_bash_code_that_no_argument_holds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bash FILE"):
        command_for("bash", "#" * 123_000, os.environ)
    command_for("bash", "#" * 122_000, os.environ)


@pytest.mark.parametrize("code", ["a\0b", "\ud800"])
@pytest.mark.parametrize("language", ["python", "bash"])
def test_code_that_is_no_text_is_refused(language: str, code: str) -> None:
    with pytest.raises(InvalidInput, match="the code"):
        command_for(language, code, os.environ)


def test_an_unknown_language_lists_the_known() -> None:
    with pytest.raises(InvalidInput, match="python, node, deno, bash"):
        command_for("cobol", "", os.environ)


def test_a_missing_interpreter_says_what_to_do() -> None:
    with pytest.raises(InterpreterMissing, match=r"no node or nodejs on PATH.*install Node"):
        command_for("node", "1", {"PATH": "/nonexistent"})
    with pytest.raises(InterpreterMissing, match=r"settings name '/nonexistent/node'"):
        command_for("node", "1", os.environ, {"node": "/nonexistent/node"})
    assert command_for("python", "1", {"PATH": "/nonexistent"}).argv[0] == sys.executable


@pytest.mark.promise("X13")
def test_the_settings_choose_the_program() -> None:
    command = command_for("python", "1", {"PATH": ""}, {"python": sys.executable})
    assert command.argv[0] == sys.executable
    assert command.channel


@pytest.mark.promise("X13")
def test_a_command_is_found_as_execvp_does(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    path = {"PATH": f"/nonexistent:{tool.parent}"}
    with pytest.raises(InvalidInput, match=r"not executable.*chmod"):
        resolve_program("tool", path, "/")
    tool.chmod(0o755)
    assert resolve_program("tool", path, "/") == str(tool)
    assert resolve_program("tool", {"PATH": "bin"}, str(tmp_path)) == str(tool)
    assert resolve_program("bin/tool", {}, str(tmp_path)) == str(tool)
    assert resolve_program(str(tool), {}, "/") == str(tool)
    for name, why in [
        ("absent", "not on PATH"),
        ("bin/absent", "does not exist"),
        ("./bin", "is a directory"),
        ("", "empty"),
        ("a\0", "NUL"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            resolve_program(name, path, str(tmp_path))
    with pytest.raises(InvalidInput, match=r"write \./tool"):
        resolve_program("tool", {"PATH": "/nonexistent"}, str(tool.parent))


def test_the_extension_tells_the_language() -> None:
    names = ["a.py", "a.js", "a.mjs", "a.CJS", "a.ts", "x/a.sh", "a", "a.txt"]
    known = [language_of(name) for name in names]
    assert known == ["python", "node", "node", "node", "deno", "bash", None, None]


def test_probe_runs_every_interpreter(tmp_path: Path) -> None:
    broken = tmp_path / "node"
    broken.write_text("#!/bin/sh\necho broken; exit 3\n")
    broken.chmod(0o755)
    old = tmp_path / "deno"
    old.write_text("#!/bin/sh\necho deno 1.46.3\n")
    old.chmod(0o755)
    bash = shutil.which("bash") or "/bin/bash"
    environ = {"PATH": str(tmp_path)}
    statuses = {s.language: s for s in probe(environ, {"bash": bash, "python": "/nonexistent"})}
    assert list(statuses) == list(LANGUAGES)
    assert statuses["bash"].problem == "" and statuses["bash"].version
    assert "ended with 3: broken" in statuses["node"].problem
    assert "2 or later" in statuses["deno"].problem
    assert statuses["python"].program is None and "settings" in statuses["python"].problem


def test_importing_the_package_loads_nothing_slow() -> None:
    code = (
        "import sys; old = set(sys.modules); import tenuto.interpreters; "
        "print(*({'subprocess', 'asyncio', 'shutil', 'pathlib'} & (set(sys.modules) - old)))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, check=True
    ).stdout
    assert out.split() == []
