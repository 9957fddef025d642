"""TypeScript for the default engine does what a runtime that knows TypeScript does with it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from deno import find_deno_bin
from evaluating import Machine, Raised
from typescript_corpus import SNIPPETS

from tenuto.codemode.grammar import BadSourceError
from tenuto.codemode.source import prepare

pytestmark = pytest.mark.promise("C9")

_ALL = """
const results = [];
for (const source of %s) {
  globalThis.out = undefined;
  try {
    await import('data:application/typescript;base64,' + source);
    results.push({ out: JSON.stringify(globalThis.out) });
  } catch (error) {
    results.push({ error: String(error) });
  }
}
console.log(JSON.stringify(results));
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What deno makes of each snippet, all in one process."""
    folder = tmp_path_factory.mktemp("deno")
    sources = [base64.b64encode(code.encode()).decode() for code in SNIPPETS]
    script = folder / "all.mjs"
    script.write_text(_ALL % json.dumps(sources))
    environment = {"DENO_DIR": str(folder / "cache"), "PATH": os.environ["PATH"], "NO_COLOR": "1"}
    flags = ["--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--no-check"]
    done = subprocess.run(
        [find_deno_bin(), "run", *flags, str(script)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert not list(Path(folder).glob("core*"))
    return dict(zip(SNIPPETS, json.loads(done.stdout), strict=True))


def test_the_corpus_is_large_and_right(real: dict[str, dict[str, str]]) -> None:
    assert len(SNIPPETS) == len({*SNIPPETS}) >= 80
    assert {code: answer for code, answer in real.items() if "out" not in answer} == {}


@pytest.mark.parametrize("wrap", ["", "await 0;"])
@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("code", SNIPPETS)
def test_it_does_what_deno_does(
    code: str, session: bool, wrap: str, real: dict[str, dict[str, str]]
) -> None:
    machine = Machine("ts", session)
    machine.context.eval("self = globalThis")
    machine.run(wrap + code)
    assert {"out": machine.context.eval("JSON.stringify(globalThis.out)")} == real[code]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1\nnamespace N { export const a = 1 }", "namespace.*--engine deno"),
        ("1\n@dec class A {}", "decorators.*--engine deno"),
        ("1\nimport fs = require('fs')", "import.*--engine deno"),
        ("1\nexport = 5", "--engine deno"),
        ("1\nlet x: = 5", "--engine deno"),
        ("1\nclass A { static [k: string]: any }", "--engine deno"),
        ("1\nimport fs from 'fs'", "no modules"),
        ("1\nenum E { A = 'a', B }", "needs a value"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_next_step(code: str, message: str) -> None:
    with pytest.raises(BadSourceError, match=message) as caught:
        prepare(code, "ts")
    assert caught.value.line == 2


@pytest.mark.parametrize(
    "code",
    [
        "interface A {\n a: number\n}\nenum E {\n A,\n B\n}\nmissing()",
        "const f = (x: number): {\n a: 1\n} => missing()\n\n\n\nfunction q<\n T\n>() {}\nf(1)",
    ],
)
def test_errors_tell_their_line(code: str) -> None:
    with pytest.raises(Raised, match="missing") as caught:
        Machine("ts").run(code)
    assert caught.value.line == 1 + code[: code.index("missing")].count("\n")


def test_the_last_expression_is_the_value() -> None:
    assert Machine("ts").run("const x: number = await 5; x as number") == 5
    assert Machine("ts").run("await 1; 5 as any; type A = 1; interface B {}") == 5
    assert Machine("ts").run("let a: number = 1; a + 1; type B = 2") == 2
    session = Machine("ts", session=True)
    session.run("enum E { A, B }; let x: number; class Q<T> { t?: T }; await 1")
    assert session.run("[E.B, x === undefined, typeof Q]") == [1, True, "function"]
