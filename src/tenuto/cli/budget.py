"""tenuto budget: what agents have spent, what they may, and counting anew."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tenuto.cli.arguments import opened, whole
from tenuto.cli.console import one_line, width
from tenuto.cli.table import pairs, table
from tenuto.cli.words import plural
from tenuto.core.errors import InvalidInput
from tenuto.core.ids import short
from tenuto.core.quantities import money
from tenuto.engine import budgets
from tenuto.engine.settings import parse_dollars

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.core.budget import Spend

_HEADER = ("EXECUTION", "REQUESTS", "IN", "OUT", "COST", "TITLE")
_WINDOWS = {"day": "daily", "daily": "daily", "month": "monthly", "monthly": "monthly"}
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_NONE = ("", "none", "off")


def budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto budget`."""
    parser.usage = "tenuto budget [--set daily=10 monthly=200 task=2 hard=true] [--reset day]"
    add = parser.add_argument
    text = "limits in dollars (none for none), and whether they are hard; days are those of UTC"
    add("--set", metavar="NAME=VALUE", nargs="+", dest="limits", help=text)
    add("--reset", choices=sorted(_WINDOWS), help="count a window from zero again")
    add("-n", metavar="N", type=whole, default=10, help="how many executions to list (default 10)")


def budget(args: argparse.Namespace, console: Console) -> int:
    """Show or change the budget."""
    with closing(opened(strict=True)) as engine:
        if args.limits:
            budgets.set_limits(engine, **_limits(args.limits))
        if args.reset:
            budgets.reset(engine, _WINDOWS[args.reset], by="the command line")
        report = budgets.report(engine, args.n)
    if console.json:
        console.document(budgets.report_document(report))
        return 0
    limits = report.limits
    facts = [
        ("today", _against(report.day, limits.daily)),
        ("this month", _against(report.month, limits.monthly)),
        ("each task", "no limit" if limits.task is None else f"up to {money(limits.task)}"),
        ("at a limit", "nothing more is admitted" if limits.hard else "warned, or asked"),
    ]
    console.out("\n".join(pairs(facts)))
    if report.executions:
        rows = [
            (
                short(one.id), str(one.spend.requests), str(_in(one.spend)),
                str(one.spend.tokens.output), _cost(one.spend), one_line(one.title),
            )
            for one in report.executions
        ]  # fmt: skip
        console.out("")
        console.out("\n".join(table(_HEADER, rows, width(), right=(1, 2, 3, 4))))
    for line in _remarks(report):
        console.message(line)
    return 0


def _limits(words: list[str]) -> dict[str, Decimal | bool | None]:
    found: dict[str, Decimal | bool | None] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidInput(f"--set {word!r} sets nothing", "write it as daily=10")
        if name == "hard":
            if text.lower() not in _TRUTH:
                raise InvalidInput(f"hard is {text!r}", "write hard=true or hard=false")
            found[name] = _TRUTH[text.lower()]
        elif text.lower() in _NONE:
            found[name] = None
        else:
            found[name] = parse_dollars(text)
    return found


def _against(spend: Spend, limit: Decimal | None) -> str:
    bound = "" if limit is None else f" of {money(limit)}"
    reserved = f", {money(spend.reserved)} set aside" if spend.reserved else ""
    used = f"{plural(spend.requests, 'request')}, {_in(spend)} tokens in, {spend.tokens.output} out"
    return f"{money(spend.cost)}{bound}{reserved}  ({used})"


def _in(spend: Spend) -> int:
    return spend.tokens.total - spend.tokens.output


def _cost(spend: Spend) -> str:
    if spend.requests and spend.requests == spend.unpriced:
        return "unknown"
    return money(spend.cost) + ("+?" if spend.unpriced else "")


def _remarks(report: budgets.BudgetReport) -> list[str]:
    """Return what makes the figures less than certain."""
    lines: list[str] = []
    if report.unpriced:
        lines.append(
            f"{plural(report.unpriced, 'request')} of models without a known price: not in the cost"
        )
    if report.estimated:
        lines.append(
            f"{plural(report.estimated, 'request')} cut short: counted by what went over the line"
        )
    health: Any = report.health
    if health.lost or health.aside:
        lines.append("the ledger was damaged and some records are lost: see tenuto doctor")
    return lines
