"""The main job in half a minute: work that is handed over, survives, is answered, and is killed.

Run it with `make demo`. Everything happens in a temporary folder with the real `tenuto` command.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile

COUNTER = """
import time
for i in range(600):
    print("step", i)
    time.sleep(0.2)
"""
QUESTION = """
name = input("Your name? ")
print("Hello,", name)
len(name)
"""


def main() -> None:
    """Play the scenes in order; any surprise ends the demo with an error."""
    with tempfile.TemporaryDirectory(prefix="tenuto-demo-") as folder:
        os.environ["TENUTO_HOME"] = os.path.join(folder, "state")
        os.chdir(folder)
        try:
            counter = handed_over()
            survived()
            answered()
            killed(counter)
        finally:
            subprocess.run([*tenuto(), "kill", "--all"], capture_output=True, check=False)
    print("\nThat was Tenuto. Next: README.md, `tenuto --help`, docs/.")


def tenuto() -> list[str]:
    """Return the command, as installed beside this interpreter."""
    return [os.path.join(os.path.dirname(sys.executable), "tenuto")]


def scene(text: str) -> None:
    """Say what comes next."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*arguments: str, expect: int = 0) -> str:
    """Show a command, run it, show and return what it printed on stdout."""
    print("$", shlex.join(["tenuto", *arguments]).replace("\n", "⏎"), flush=True)
    done = subprocess.run([*tenuto(), *arguments], stdout=subprocess.PIPE, text=True, check=False)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()[:12]), end="", flush=True)
    if done.returncode != expect:
        sys.exit(f"demo: exit code {done.returncode} where {expect} was expected")
    return done.stdout


def handed_over() -> str:
    """Start two minutes of work, wait two seconds for it."""
    scene("1. A call is only a wait that may give up: after 2 s the work is handed over (exit 75).")
    run("run", "--wait", "2s", "--lang", "python", COUNTER, expect=75)
    return newest()


def survived() -> None:
    """Kill -9 the process that started the work; the work does not care."""
    scene("2. Whoever started it may die: kill -9 of the starter loses no byte and no process.")
    command = [
        *tenuto(),
        "run",
        "--title",
        "started by a process that is dead",
        "--",
        "sleep",
        "600",
    ]
    starter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while (
        "dead"
        not in subprocess.run([*tenuto(), "ps"], capture_output=True, text=True, check=True).stdout
    ):
        pass
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    run("ps")


def answered() -> None:
    """Let a program ask a question and answer it from another process."""
    scene("3. A program that waits for input says so; the answer may come from anywhere.")
    run("run", "--lang", "python", QUESTION, expect=75)
    asking = newest()
    run("send", asking, "Ada")
    run("wait", asking)
    run("logs", asking)


def killed(counter: str) -> None:
    """Read the whole log of the first one, then end it."""
    scene("4. Everything it wrote is still there, and kill means: the whole tree, verified dead.")
    run("logs", "-n", "3", counter)
    run("kill", counter)
    run("ps", "-a")


def newest() -> str:
    """Return the id of the latest execution."""
    listed = subprocess.run(
        [*tenuto(), "ps", "-a", "--json"], capture_output=True, text=True, check=True
    )
    return str(json.loads(listed.stdout)[0]["id"])


if __name__ == "__main__":
    main()
