"""Processes that write to a ledger: HOME WAY EXECUTION TIMES COUNT. They begin when stdin ends."""

import os
import sys
from decimal import Decimal

from tenuto.core.budget import Estimate, Tokens
from tenuto.metering.ledger import Ledger

home, way, execution, times, count = sys.argv[1:]
cent = Estimate(Tokens(5, 5), Decimal("0.01"))


def say(line):
    os.write(1, f"{line}\n".encode())


def write():
    ledger = Ledger(home)
    say("ready")
    os.read(0, 1)
    if way == "spend":
        total = Decimal(0)
        for number in range(int(times)):
            admission = ledger.admit(execution, f"s{number % 3}", "m", cent)
            assert admission.admitted
            cost = Decimal(number) / 1000
            assert ledger.settle(admission.reservation, Tokens(3, 2), cost)
            total += cost
        say(f"{times} {total}")
    elif way == "reserve":
        admitted = [ledger.admit(execution, "s", "m", cent).admitted for _ in range(int(times))]
        say(sum(admitted))
    else:
        assert ledger.admit(execution, "s", "m", cent).admitted
        say(os.getpid())
        os.kill(os.getpid(), 9)


children = []
for _ in range(int(count)):
    child = os.fork()
    if child == 0:
        write()
        os._exit(0)
    children.append(child)
ends = [os.waitpid(child, 0)[1] for child in children]
sys.exit(0 if ends == [9 if way == "die" else 0] * len(children) else 1)
