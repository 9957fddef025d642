"""What counting costs: the ledger beside bare locked appends, the gateway beside no gateway."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median, none_of, percentile
from tenuto.core.budget import BudgetLimits, Estimate, Grant, Tokens
from tenuto.core.ids import new_id
from tenuto.engine import gateways
from tenuto.metering.ledger import Ledger

_ESTIMATE = Estimate(Tokens(100, 100), Decimal("0.01"))
_LIMITS = BudgetLimits(daily=Decimal(10**6), monthly=Decimal(10**6), hard=True)
_WRITERS = 50

# answers every request alike, as a model would that needs no time
_UPSTREAM = """
import json, socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
told = {"type": "message", "role": "assistant", "model": "sonnet", "content": [],
        "usage": {"input_tokens": 10, "output_tokens": 5}}
body = json.dumps(told).encode()
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
    def log_message(self, *words):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
"""

# processes that begin to write when stdin ends
_WRITER = """
import os, sys
from decimal import Decimal
from tenuto.core.budget import Estimate, Tokens
from tenuto.metering.ledger import Ledger
home, execution, times, count = sys.argv[1:]
children = []
for _ in range(int(count)):
    child = os.fork()
    if child == 0:
        ledger = Ledger(home)
        os.write(1, b"r")
        os.read(0, 1)
        for _ in range(int(times)):
            found = ledger.admit(execution, "s", "m", Estimate(Tokens(1, 1), Decimal("0.01")))
            ledger.settle(found.reservation, Tokens(2, 1), Decimal("0.02"))
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def metering(quick: bool) -> Iterator[Row]:
    """Yield what the ledger and the gateway cost, and whether many writers stay right."""
    with Place() as place:
        home = place.project.home
        os.makedirs(home, mode=0o700, exist_ok=True)
        yield _ledger(home, 200 if quick else 3000)
        yield from _many(home, 4 if quick else 40)
        yield from _gateway(place, 20 if quick else 300)


def _ledger(home: str, times: int) -> Row:
    floor: list[float] = []
    fd = os.open(os.path.join(home, "floor"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(times):
            begin = time.perf_counter()
            for _ in range(2):
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.pwrite(fd, bytes(200), os.fstat(fd).st_size)
                fcntl.flock(fd, fcntl.LOCK_UN)
            floor.append((time.perf_counter() - begin) * 1000)
    finally:
        os.close(fd)
    ledger, one = Ledger(home), new_id()
    ledger.grant(Grant(one, max_cost=Decimal(10**6), hard=True))
    ours: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        found = ledger.admit(one, "s", "m", _ESTIMATE, _LIMITS)
        ledger.settle(found.reservation, Tokens(90, 20), Decimal("0.005"), status=200)
        ours.append((time.perf_counter() - begin) * 1000)
    ledger.close()
    what = "ledger: admit and settle one request"
    return at_most(what, median(ours), 1.0, floor=median(floor), note="floor: two locked appends")


def _many(home: str, times: int) -> Iterator[Row]:
    one = new_id()
    words = [sys.executable, "-c", _WRITER, home, one, str(times), str(_WRITERS)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = b""
        while len(ready) < _WRITERS:
            ready += process.stdout.read(1)
        begin = time.perf_counter()
        process.stdin.close()
        failed = process.wait()
        took = (time.perf_counter() - begin) * 1000
    ledger = Ledger(home)
    spend = ledger.spend(one)
    ledger.close()
    right = _WRITERS * times
    wrong = abs(spend.requests - right) + spend.unsettled + bool(failed)
    wrong += spend.cost != Decimal("0.02") * right
    yield none_of(f"ledger: {_WRITERS} processes at once, miscounted", wrong, "requests")
    what = f"ledger: one request beside {_WRITERS - 1} others"
    yield Row(what=what, ours=took / right, note="all together, divided")


def _gateway(place: Place, times: int) -> Iterator[Row]:
    upstream = subprocess.Popen([sys.executable, "-c", _UPSTREAM], stdout=subprocess.PIPE)
    engine = place.blocking()
    try:
        assert upstream.stdout is not None
        port = int(upstream.stdout.readline())
        environ = {
            **os.environ,
            "ANTHROPIC_API_KEY": "none",
            "TENUTO_UPSTREAM_ANTHROPIC": f"http://127.0.0.1:{port}",
        }
        begin = time.perf_counter()
        info = gateways.ensure(engine, environ)
        yield Row(what="gateway: start", ours=(time.perf_counter() - begin) * 1000)
        begin = time.perf_counter()
        gateways.ensure(engine, environ)
        yield Row(what="gateway: found again", ours=(time.perf_counter() - begin) * 1000)
        endpoint = gateways.endpoint(
            info, info.execution_id, "s"
        )  # a task must live, and this does
        direct = http.client.HTTPConnection("127.0.0.1", port)
        through = http.client.HTTPConnection(endpoint.url.removeprefix("http://"))
        straight: list[float] = []
        metered: list[float] = []
        for line, path in ((direct, "/v1/messages"), (through, "/anthropic/v1/messages")):
            for _ in range(10):
                _ask(line, path, endpoint.token)
        for _ in range(times):  # in turn, so that both meet the same weather
            straight.append(_ask(direct, "/v1/messages", endpoint.token))
            metered.append(_ask(through, "/anthropic/v1/messages", endpoint.token))
        direct.close()
        through.close()
        base, ours = median(straight), median(metered)
        yield at_most(
            "gateway: adds to one request", ours - base, 5.0, note=f"direct {base:.2f} ms"
        )
        tail = percentile(metered, 95) - percentile(straight, 95)
        yield Row(what="gateway: adds at p95", ours=max(0.0, tail))
        spend = _spend(place, endpoint.token[7:43])
        wrong = abs(spend - (times + 10))
        yield none_of("gateway: requests it did not count", wrong, "requests")
    finally:
        upstream.kill()
        upstream.wait()
        if upstream.stdout is not None:
            upstream.stdout.close()
        engine.close()


def _spend(place: Place, execution: str) -> int:
    ledger = Ledger(place.project.home)
    try:
        return ledger.spend(execution).requests
    finally:
        ledger.close()


def _ask(line: http.client.HTTPConnection, path: str, token: str) -> float:
    body = json.dumps({"model": "sonnet", "max_tokens": 9, "messages": []})
    begin = time.perf_counter()
    line.request("POST", path, body, {"x-api-key": token, "content-type": "application/json"})
    answer = line.getresponse()
    told = answer.read()
    took = (time.perf_counter() - begin) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {told[:200]!r}")
    return took
