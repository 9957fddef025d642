"""The entry point: `tenuto bench [NAME…] [--quick] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence

from tenuto.bench import (
    checkpoints,
    codemode,
    control,
    deno,
    history,
    hostcalls,
    interrupts,
    mcp,
    metering,
    output,
    sandboxing,
    starting,
    startup,
    storage,
    tasks,
)
from tenuto.bench.table import Row, as_document, conditions, heading, line, say

BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "start": starting.start,
    "throughput": starting.throughput,
    "vm": codemode.vm,
    "vms": codemode.vms,
    "vm-crowd": codemode.vm_crowd,
    "handover": control.handover,
    "neighbour": starting.neighbour,
    "run": startup.cold_run,
    "volume": output.volume,
    "follower": output.follower,
    "crowd": starting.crowd,
    "stdin": control.stdin,
    "kill": control.kill,
    "tape": storage.tape,
    "index": storage.index,
    "rebuild": storage.rebuild,
    "checkpoints": checkpoints.checkpoints,
    "history": history.history,
    "mcp": mcp.mcp,
    "ps": startup.ps,
    "sandbox": sandboxing.sandbox,
    "hostcalls": hostcalls.hostcalls,
    "deno": deno.deno,
    "metering": metering.metering,
    "tasks": tasks.tasks,
    "interrupts": interrupts.interrupts,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks; 1 if anything was wrong, while a missed speed is only shown."""
    options = _parser().parse_args(arguments)
    names: list[str] = options.names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}\n")
        return 2
    before = conditions()
    if not options.json:
        say("  ".join(f"{key} {value}" for key, value in before.items()))
        say(heading())
    documents: list[dict[str, object]] = []
    wrong = 0
    for name in names:
        for row in _rows(name, options.quick):
            documents.append(as_document(name, row))
            wrong += row.exact and not row.met
            if not options.json:
                say(line(row))
    after = conditions()["load"]
    if options.json:
        say(json.dumps({"conditions": {**before, "load_after": after}, "rows": documents}))
    else:
        judged = [one for one in documents if one["met"] is not None]
        met = sum(bool(one["met"]) for one in judged)
        say(f"\n{met} of {len(judged)} met; load afterwards {after}")
    return 1 if wrong else 0


def _rows(name: str, quick: bool) -> Iterator[Row]:
    """Yield a benchmark's rows; one that breaks is a row too, and the others go on."""
    begin = time.perf_counter()
    try:
        yield from BENCHMARKS[name](quick)
    except Exception as error:
        traceback.print_exc()
        took = time.perf_counter() - begin
        yield Row(
            what=f"{name} broke off", ours=took, unit="s", met=False, exact=True,
            note=f"{type(error).__name__}: {error}",
        )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tenuto bench",
        description="Measure this machine. Floors are measured in the same run: judge by ratios.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="few samples: does it work at all")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
