"""The scripted model as a program: prints its address and serves until it is ended."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tenuto.testing.models.demo import LABEL, load_demo, load_script
from tenuto.testing.models.server import Model


def main() -> int:
    """Serve a script; the first line on stdout is the address."""
    about = "Serve a scripted model on loopback, in the dialects of Anthropic, OpenAI and Google."
    parser = argparse.ArgumentParser(prog="python -m tenuto.testing.models", description=about)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--script", type=Path, metavar="FILE.json", help="what it is to say")
    which.add_argument("--demo", action="store_true", help="an architect, a developer, a reviewer")
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    given = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before any thread: all of them inherit it
    try:
        model = Model(given.port)
    except (OSError, OverflowError) as error:
        print(f"cannot listen on port {given.port}: {error}", file=sys.stderr)
        return 1
    with model:
        try:
            if given.demo:
                load_demo(model)
            else:
                load_script(model, given.script.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError) as error:
            print(f"{given.script} is no script: {error}", file=sys.stderr)
            return 1
        print(model.url, flush=True)
        print(LABEL, file=sys.stderr, flush=True)
        signal.sigwait(ends)
    total = model.billed()
    print(f"{len(model.bill)} answers, {total.total} tokens", file=sys.stderr)
    for error in model.errors:
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
