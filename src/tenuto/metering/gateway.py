"""The metering gateway: admits requests to models, passes them on, and counts what they used.

Runtimes have a token of ours instead of a key. A request is checked and reserved in the ledger before
it goes on under the real key, and settled when its answer ends, before the client sees that end. At a
hard cap it is refused; at a bound that asks it is held until somebody has decided.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tenuto.core.budget import Admission, BudgetLimits, Crossing, Estimate, Tokens
from tenuto.core.errors import TenutoError
from tenuto.metering import dialects, passes
from tenuto.metering.dialects import Ask, Dialect
from tenuto.metering.http import (
    Gone,
    Receive,
    Request,
    Scope,
    Send,
    TooLarge,
    answer,
    body_of,
    while_present,
)
from tenuto.metering.ledger import UNLIMITED, Ledger
from tenuto.metering.prices import Prices
from tenuto.metering.relay import Relay, Unreachable
from tenuto.metering.upstreams import PROVIDERS, Upstream
from tenuto.metering.usage import Usage, tokens_of

if TYPE_CHECKING:
    from httpx2 import AsyncClient

Teller = Callable[[str, str, Sequence[Crossing]], None]
"""Told an execution, a step and the bounds that are reached. It may block; an error of ours refuses."""
Herald = Callable[[str, str, str], None]
"""Told an execution, a step and how a model's server failed it; nothing once that answers. May block."""
_TYPICAL_OUTPUT = 1024
_TYPICAL_WINDOW = 200_000
_NAME_MOST = 512
_SYNC_EVERY_S = 1.0
_NO_RETRY = [(b"x-should-retry", b"false")]


def _nobody(execution: str, step: str, what: object) -> None:
    del execution, step, what


class _RefusedError(Exception):
    """The request is answered by ourselves."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gateway:
    """An ASGI application for one project, one set of keys and one event loop."""

    def __init__(
        self,
        ledger: Ledger,
        upstreams: Mapping[str, Upstream],
        secret: bytes,
        client: AsyncClient,
        *,
        prices: Prices | None = None,
        limits: Callable[[], BudgetLimits] = lambda: UNLIMITED,
        on_ask: Teller = _nobody,
        on_warn: Teller = _nobody,
        lives: Callable[[str], bool] = lambda _: True,
        on_trouble: Herald = _nobody,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Take what it works with; `about` is told to those who ask for its health.

        `lives` tells whether an execution is still there: whoever has a token of one that is not is
        refused.
        """
        self.ledger = ledger
        self.prices = prices or Prices()
        self.last_active = time.monotonic()
        self.in_flight = 0
        self.held = 0
        self._upstreams = dict(upstreams)
        self._secret = secret
        self._client = client
        self._limits = limits
        self._on_ask = on_ask
        self._on_warn = on_warn
        self._lives = lives
        self._on_trouble = on_trouble
        self._troubled: dict[tuple[str, str], float] = {}
        self._telling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._about = dict(about or {})
        self._bell = asyncio.Event()
        self._asked: Counter[str] = Counter()
        self._reserved = 0
        self._late: list[Callable[[], object]] = []
        self._sync: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        self.in_flight += 1
        self.last_active = time.monotonic()
        try:
            await self._serve(Request.of(scope), receive, send)
        except Gone:
            return
        finally:
            self.in_flight -= 1
            self.last_active = time.monotonic()

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        provider, below = _route(request.path)
        dialect = dialects.BY_PROVIDER.get(provider, dialects.BY_PROVIDER["anthropic"])
        try:
            if request.foreign:
                raise _RefusedError(403, f"Tenuto gateway: refused, {request.foreign}")
            if provider == "_tenuto":
                await self._own(request, below, send)
                return
            if provider not in PROVIDERS or request.ambiguous:
                raise _RefusedError(404, "Tenuto gateway: there is nothing at this path")
            whose = self._whose(request)
            body = await body_of(receive)
            found = dialects.sort(provider, request.method, below)
            if isinstance(found, Dialect):
                dialect = found
            work = self._forward(request, provider, below, body, found, whose, send)
            await while_present(work, receive)
        except TooLarge:
            message = "Tenuto gateway: the request is larger than 64 MiB"
            await answer(send, 413, dialect.error(413, message), _NO_RETRY)
        except _RefusedError as error:
            await answer(send, error.status, dialect.error(error.status, str(error)), _NO_RETRY)

    async def _own(self, request: Request, below: str, send: Send) -> None:
        """Answer those who know the secret: is it you, and look again."""
        if below == "/health" and request.method == "GET":
            nonce = request.query[:128]
            told = {"proof": passes.proof(self._secret, f"health:{nonce}"), **self._about}
            await answer(send, 200, {**told, "in_flight": self.in_flight - 1, "held": self.held})
            return
        given = request.header(b"x-tenuto-proof").decode("latin-1")
        if below != "/wake" or request.method != "POST":
            raise _RefusedError(404, "Tenuto gateway: there is nothing at this path")
        if not passes.proves(self._secret, "wake", given):
            raise _RefusedError(401, "Tenuto gateway: this takes the project's secret")
        self._ring()
        await answer(send, 200, {"held": self.held})

    def _whose(self, request: Request) -> tuple[str, str]:
        for key in request.candidates():
            found = passes.read(self._secret, key)
            if found is not None:
                return found[0], self._checked(*found)
        raise _RefusedError(
            401,
            "Tenuto gateway: this is no token of a task of this project; start one: tenuto task",
        )

    def _checked(self, execution: str, step: str) -> str:
        """Return the step that a token stands for now, as sessions go on from step to step.

        Whoever outlives its task is refused: its driver said that it ends, or is gone.
        """
        try:
            grant = self.ledger.granted(execution)
            bound = self.ledger.bound(execution, step)
        except TenutoError as error:
            raise _RefusedError(400, f"Tenuto budget: {error}") from error
        if (grant is not None and grant.closed) or not self._lives(execution):
            raise _RefusedError(
                401, f"Tenuto gateway: the task of this token has ended ({execution})"
            )
        return bound

    async def _forward(
        self,
        request: Request,
        provider: str,
        below: str,
        body: bytes,
        kind: Dialect | str,
        whose: tuple[str, str],
        send: Send,
    ) -> None:
        upstream = self._upstreams[provider]
        if upstream.default and not upstream.value:
            raise _RefusedError(
                401,
                f"Tenuto gateway: no key for {provider} was set where the task was started; "
                f"set one and start it again",
            )
        relay = Relay(self._client, upstream, request, below)
        if not isinstance(kind, Dialect):
            if kind == "unknown":
                raise _RefusedError(
                    404,
                    f"Tenuto gateway: {request.method} {below} is not passed on, because nobody "
                    "could tell what it costs",
                )
            try:
                await relay.plain(body, send)
            except Unreachable as error:
                raise _RefusedError(502, str(error)) from error
            return
        ask = kind.ask(body, below, request.query)
        if ask is None:
            raise _RefusedError(400, "Tenuto gateway: the request is no JSON with a model in it")
        if ask.hidden:
            raise _RefusedError(400, f"Tenuto gateway: {ask.hidden}")
        if len(ask.model) > _NAME_MOST:  # it would be kept for each request
            raise _RefusedError(400, "Tenuto gateway: no model has so long a name")
        await self._counted(relay, kind, ask, whose, send)

    # One counted request

    async def _counted(
        self, relay: Relay, dialect: Dialect, ask: Ask, whose: tuple[str, str], send: Send
    ) -> None:
        estimate = self._estimate(dialect, ask)
        admission = await self._admitted(whose, ask, estimate)
        reservation = admission.reservation
        asked = estimate.tokens.input
        began = time.monotonic()
        open_ = True
        self._reserved += 1

        def settle(usage: Usage, status: int) -> None:
            nonlocal open_
            if open_:
                open_ = False
                self._reserved -= 1
                self._settle(reservation, dialect, ask, usage, status)

        try:
            await relay.counted(ask, dialect, send, settle, asked)
            self._went(whose, began, relay)
        except Unreachable as error:
            settle(Usage(estimated=error.sent), 0)
            self._trouble(whose, str(error))
            raise _RefusedError(502, str(error)) from error
        finally:  # the client went, or we are ended: what is known by now has to do
            if open_:
                settle(relay.usage(asked), relay.status)

    def _estimate(self, dialect: Dialect, ask: Ask) -> Estimate:
        window = self.prices.context_window(ask.model, dialect.provider) or _TYPICAL_WINDOW
        given = min(tokens_of(len(ask.body.decode("utf-8", "replace"))), window)
        made = min(ask.max_output or _TYPICAL_OUTPUT, _TYPICAL_OUTPUT)
        tokens = Tokens(given, made)
        return Estimate(tokens, self.prices.cost(ask.model, tokens, dialect.provider))

    async def _admitted(self, whose: tuple[str, str], ask: Ask, estimate: Estimate) -> Admission:
        """Return the admission, once there is one; raises _RefusedError at a hard cap, or if denied."""
        execution, step = whose
        hold: str | None = None
        try:
            while True:
                bell = self._bell
                admission = self._ask_ledger(execution, step, ask.model, estimate)
                if admission.admitted:
                    if admission.news:
                        await self._tell(self._on_warn, whose, admission)
                    return admission
                passing = admission.verdict == "stop" and self._may_free(admission)
                if admission.verdict == "stop" and not passing:
                    raise _RefusedError(400, _refusal(execution, admission.crossings))
                if not passing and hold is None:
                    hold = f"{execution} {[str(one.limit) for one in admission.crossings]}"
                    self.held += 1
                    self._asked[hold] += 1
                    if self._asked[hold] == 1:
                        await self._tell(self._on_ask, whose, admission)
                await bell.wait()
        finally:
            if hold is not None:
                self.held -= 1
                self._asked[hold] -= 1

    def _ask_ledger(self, execution: str, step: str, model: str, estimate: Estimate) -> Admission:
        try:
            while self._late:  # what found no room before goes first
                self._late[-1]()
                self._late.pop()
            admission = self.ledger.admit(execution, step, model, estimate, self._limits())
        except TenutoError as error:
            raise _RefusedError(400, f"Tenuto budget: {error}") from error
        self._sync_soon()
        return admission

    def _may_free(self, admission: Admission) -> bool:
        """Tell whether requests of ours that are under way may yet leave room below a hard cap."""
        return self._reserved > 0 and all(
            one.spent - one.reserved < one.limit and not one.unpriced for one in admission.crossings
        )

    async def _tell(self, teller: Teller, whose: tuple[str, str], admission: Admission) -> None:
        try:
            await asyncio.to_thread(teller, *whose, admission.crossings)
        except TenutoError as error:
            if admission.verdict == "ask":
                text = _refusal(whose[0], admission.crossings)
                raise _RefusedError(400, f"{text} Nobody could be asked: {error}") from error

    # Servers of models that fail

    def _went(self, whose: tuple[str, str], began: float, relay: Relay) -> None:
        """See how a model's server did: runtimes try again what it fails, many of them silently."""
        if relay.cut:
            self._trouble(whose, "the model's answer broke off")
        elif relay.status == 429 or relay.status >= 500:
            self._trouble(whose, f"the model's server answered {_phrase(relay.status)}")
        elif relay.status < 400 and began > self._troubled.get(whose, began):
            del self._troubled[whose]
            self._herald(whose, "")

    def _trouble(self, whose: tuple[str, str], text: str) -> None:
        self._troubled[whose] = time.monotonic()
        self._herald(whose, text)

    def _herald(self, whose: tuple[str, str], text: str) -> None:
        """Tell whoever drives the step, one thing after the other; no request waits for it."""
        before = self._telling.get(whose)

        async def told() -> None:
            if before is not None:
                await before
            with suppress(TenutoError, OSError):  # the task has ended
                await asyncio.to_thread(self._on_trouble, *whose, text)
            if self._telling.get(whose) is telling:
                del self._telling[whose]

        telling = self._telling[whose] = asyncio.ensure_future(told())

    def _settle(
        self, reservation: str, dialect: Dialect, ask: Ask, usage: Usage, status: int
    ) -> None:
        model, cost = usage.model[:_NAME_MOST] or ask.model, Decimal(0)
        if usage.tokens.total:
            priced = self._price(model, dialect, usage)
            if priced is None and model != ask.model:
                priced = self._price(ask.model, dialect, usage)
            cost = priced

        def write() -> None:
            self.ledger.settle(reservation, usage.tokens, cost, usage.estimated, status, model)

        try:
            write()
        except TenutoError as error:  # it counts as what was reserved until there is room
            sys.stderr.write(f"a request could not be settled yet: {error}\n")
            self._late.append(write)
        self._ring()
        self._sync_soon()

    def _price(self, model: str, dialect: Dialect, usage: Usage) -> Decimal | None:
        return self.prices.cost(model, usage.tokens, dialect.provider, usage.hour_writes)

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def _sync_soon(self) -> None:
        if self._sync is None or self._sync.done():
            self._sync = asyncio.ensure_future(self._synced())

    async def _synced(self) -> None:
        try:
            await asyncio.sleep(_SYNC_EVERY_S)
        finally:
            with suppress(OSError):
                await asyncio.to_thread(self.ledger.sync)

    async def close(self) -> None:
        """Bring everything to the disk."""
        if self._sync is not None:
            self._sync.cancel()
            await asyncio.gather(self._sync, return_exceptions=True)
        await asyncio.gather(*self._telling.values(), return_exceptions=True)
        with suppress(TenutoError):
            for write in self._late:
                write()
        with suppress(OSError):
            self.ledger.sync()


def _phrase(status: int) -> str:
    """Return a status with its meaning; some servers have one of their own for too much work."""
    try:
        return f"{status} ({HTTPStatus(status).phrase.lower()})"
    except ValueError:
        return f"{status} (overloaded)" if status == 529 else str(status)


def _route(path: str) -> tuple[str, str]:
    """Return the provider and the path below it."""
    head, _, rest = path.lstrip("/").partition("/")
    if head == "openai":
        return ("openai", f"/{rest[3:]}") if rest.startswith("v1/") else ("", "")
    return head, f"/{rest}"


def _refusal(execution: str, crossings: Sequence[Crossing]) -> str:
    """Return what a refused client is told: limit, spent, and the next step."""
    what = "; ".join(str(one) for one in crossings)
    steps: list[str] = []
    for one in crossings:
        if one.unpriced:
            steps.append("give the model a price in [prices], 0 where it costs nothing")
            steps.append("bound its tokens instead (--max-tokens)")
        elif one.scope in ("daily", "monthly"):
            steps.append(f"raise it with: tenuto budget --set {one.scope}=AMOUNT")
        else:
            unit = "--max-cost" if one.unit == "cost" else "--max-tokens"
            steps.append(f"start the task again with a higher {unit}")
    return f"Tenuto budget: {what}. To go on, {' or '.join(dict.fromkeys(steps))}. ({execution})"
