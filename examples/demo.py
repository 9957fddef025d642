"""The main job in a minute: work that is handed over, survives, is answered, is killed; and agents.

Run it with `make demo`. Everything happens in a temporary folder with the real `tenuto` command. No
real model is asked: a scripted one stands in for it, on loopback, so that no key is needed.
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
            worked_together(folder)
        finally:
            subprocess.run([*tenuto(), "kill", "--all"], capture_output=True, check=False)
    print("\nThat was Tenuto. Next: README.md, `tenuto --help`, docs/.")


def tenuto() -> list[str]:
    """Return the command, as installed beside this interpreter."""
    return [os.path.join(os.path.dirname(sys.executable), "tenuto")]


def scene(text: str) -> None:
    """Say what comes next."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*arguments: str, expect: int = 0, most: int = 12) -> None:
    """Show a command, run it, and show what it prints on stdout, as it comes."""
    print("$", shlex.join(["tenuto", *arguments]).replace("\n", "⏎"), flush=True)
    with subprocess.Popen([*tenuto(), *arguments], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        for number, line in enumerate(command.stdout):
            if number < most:
                print(f"  {line.rstrip()}", flush=True)
    if command.returncode != expect:
        sys.exit(f"demo: exit code {command.returncode} where {expect} was expected")


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


def worked_together(folder: str) -> None:
    """Let an architect, a developer and a reviewer do a task, with every request counted."""
    scene("5. Agents: one designs, one builds, one reviews and sends back what does not work.")
    print("   A SCRIPTED MODEL stands in for a real one here; its words are not a model's.")
    words = [sys.executable, "-m", "tenuto.testing.models", "--demo", "--port", "0"]
    model = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert model.stdout is not None
        url = model.stdout.readline().strip()
        with open(os.path.join(folder, "tenuto.toml"), "w") as file:
            file.write(f'[providers.anthropic]\nbase_url = "{url}"\n')
        os.environ["ANTHROPIC_API_KEY"] = "no-real-key"
        task = ("task", "--runtime", "cli", "--strategy", "multi", "--permissions", "allow")
        run(*task, "--wait", "10m", "Write fizzbuzz.py", most=60)
        run("budget")
    finally:
        model.terminate()
        model.wait()


def newest() -> str:
    """Return the id of the latest execution."""
    listed = subprocess.run(
        [*tenuto(), "ps", "-a", "--json"], capture_output=True, text=True, check=True
    )
    return str(json.loads(listed.stdout)[0]["id"])


if __name__ == "__main__":
    main()
