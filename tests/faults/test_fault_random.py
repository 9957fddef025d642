"""Kills at random: whoever dies whenever, what was shown stays and nothing runs on unkept."""

import contextlib
import os
import random
import signal
import time

import pytest
from fault_help import HAS_GROUPS, Forge, Worker, alive, gone, marked, settled

from tenuto.core.errors import NotRunning
from tenuto.core.states import State
from tenuto.engine import recover
from tenuto.keeper import procfs
from tenuto.stores.tape import TapeReader

LINES = 30
LAST_LINE = b"line %d\n" % LINES
WHOLE = b"".join(b"line %d\n" % n for n in range(1, LINES + 1))
LOOP = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.001; done"
PROGRAMS = ("chatty", "silent", "daemon", "stdin", "code", "pty")
TARGETS = ("worker", "worker", "zygote", "idle", "keeper", "keeper", "child")


class Round:
    """One execution, one kill, and what must hold."""

    def __init__(self, driver, number):
        self.driver = driver
        self.random = rng = random.Random(f"{driver.seed}/{number}")
        self.way = rng.choice(("fresh", "zygote", "zygote"))
        self.program = rng.choice(PROGRAMS)
        self.target = rng.choice(TARGETS)
        self.at_line = rng.randrange(1, LINES + 1) if rng.random() < 0.5 else 0
        self.at_ms = rng.uniform(0, 80)
        self.cleared = HAS_GROUPS and rng.random() < 0.5
        self.side = driver.world.folder / f"side-{number}"
        self.pids = driver.world.folder / f"pids-{number}"
        self.acked = b""
        self.id = None
        self.started = None
        self.killed = ""

    def __repr__(self):
        when = f"line {self.at_line}" if self.at_line else f"{self.at_ms:.1f} ms"
        return f"{self.program} by {self.way}, {self.target} killed ({self.killed}) at {when}"

    def request(self):
        ran = f"echo ran >> {self.side}"
        if self.program == "code":
            code = (
                f"import time\nopen({str(self.side)!r}, 'a').write('ran\\n')\n"
                f"for n in range(1, {LINES + 1}):\n    print('line', n)\n    time.sleep(0.001)\n"
            )
            return {"code": code}
        script = {
            "chatty": f"{ran}; {LOOP}",
            "pty": f"{ran}; {LOOP}",
            "silent": f"{ran}; sleep 0.04",
            "stdin": f'{ran}; {LOOP}; read word; [ "$word" = go ]',
            "daemon": f"{ran}; (setsid {'env -i ' if self.cleared else ''}sh -c "
            f"'echo $$ >> {self.pids}; exec sleep 1000' >/dev/null 2>&1 &); {LOOP}",
        }[self.program]
        return {"argv": ["sh", "-c", script], "pty": self.program == "pty"}

    def run(self):
        worker = self.driver.worker(self.way)
        worker.ask(self.request())
        moment = time.monotonic() + self.at_ms / 1000
        if self.at_line and self.program != "silent":
            self.id = worker.answer(30)
            self._follow(lambda: self.acked.count(b"\n") >= self.at_line, time.monotonic() + 5)
        else:
            self.id = worker.answer(moment - time.monotonic())
            self._follow(lambda: time.monotonic() >= moment, moment)
        if self.id is None and self.target in ("keeper", "child"):  # they are not there yet
            self.id = worker.answer(30)
            self._follow(lambda: self.acked or self.program == "silent", time.monotonic() + 5)
        self._kill(worker)
        if self.id is None:  # it lives, or died in the middle of the start
            self.id = worker.answer(30)
        with self.driver.world.fresh() as engine:
            new = {one.id for one in engine.list(most=None)} - self.driver.seen
            self.driver.seen |= new
            assert len(new) <= 1
            if self.id:
                assert new == {self.id}
                told = True
            elif new:
                (self.id,), told = new, False
            else:
                assert not self.side.exists()
                return
            self._check(engine, told)

    def _follow(self, enough, until):
        """Read the tape as it grows: from here on these bytes are promised."""
        if not self.id:
            return
        with TapeReader(self.driver.world.project.folder(self.id)) as reader:
            while True:
                ended = False
                for frame in reader.new():
                    if frame.stream == 1:
                        self.acked += frame.body
                    ended = ended or b'"type":"ended"' in frame.body
                if ended or enough() or time.monotonic() > until:
                    return
                time.sleep(0.0005)

    def _kill(self, worker):
        execution = recover.load(self.driver.world.project, self.id) if self.id else None
        self.started = execution.started if execution is not None else None
        victims = self._victims(worker)
        if not victims.get(self.target):  # not there just now: somebody else, then
            there = [name for name, pids in victims.items() if pids and name != "worker"]
            self.target = self.random.choice(there or ["worker"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(victims[self.target]), signal.SIGKILL)
            self.killed = self.target
            self.driver.kills[self.target] = self.driver.kills.get(self.target, 0) + 1
        if self.target == "worker":
            gone([worker.pid])

    def _victims(self, worker):
        zygotes = worker.named("tenuto-zygote")
        waiting = worker.named("tenuto-idle")
        idle = [pid for pid in waiting if procfs.parent(pid) in zygotes]
        victims = {
            "worker": [worker.pid],
            "zygote": zygotes,
            "idle": idle,
            "keeper": [],
            "child": [],
        }
        if self.started is None:
            # A program that has not executed yet bears its keeper's name, and is none.
            named = worker.named("tenuto-keeper")
            victims["keeper"] = [pid for pid in named if procfs.parent(pid) not in named]
        else:
            known = self.started
            if procfs.start_time(known.keeper_pid) == known.keeper_start:
                victims["keeper"] = [known.keeper_pid]
            if procfs.start_time(known.pid) == known.pid_start:
                victims["child"] = [known.pid]
        return victims

    def _check(self, engine, told):
        whole = b"" if self.program == "silent" else WHOLE
        if self.program == "stdin":
            with contextlib.suppress(NotRunning):
                engine.send(self.id, b"go\n")
        snapshot = engine.show(self.id)
        if snapshot.running:
            self.driver.went_on += 1
            snapshot = engine.wait(self.id, 20)
            if snapshot.needs_input:
                snapshot = engine.wait(self.id, 20)
            assert snapshot.done, f"{snapshot.state} for too long"
        allowed = {State.SUCCEEDED}
        if self.killed == "keeper" or not told or (self.killed == "idle" and not self.started):
            allowed.add(State.LOST)
        if self.killed == "child":
            allowed.add(State.FAILED)
        assert snapshot.state in allowed, (snapshot.state, snapshot.reason, snapshot.detail)
        if snapshot.left_behind or self.program == "daemon":  # its keeper stays with them
            with contextlib.suppress(NotRunning):
                engine.kill(self.id)
        snapshot = settled(engine, self.id, self.acked, whole)
        if self.program == "daemon" and self.pids.exists():
            assert not gone([int(pid) for pid in self.pids.read_text().split()], 2)
        runs = len(self.side.read_text().splitlines()) if self.side.exists() else 0
        assert runs <= 1
        if snapshot.state is State.SUCCEEDED:
            assert runs == 1
        self.driver.states[snapshot.state] = self.driver.states.get(snapshot.state, 0) + 1


class Driver:
    """Rounds over reused workers; whoever was killed is replaced."""

    def __init__(self, world, seed):
        self.world, self.seed = world, seed
        self.seen, self.states = set(), {}
        self.kills, self.went_on = {}, 0
        self._forge = Forge(world.environ)
        self._workers = {}
        self._made = 0

    def worker(self, way):
        worker = self._workers.get(way)
        if worker is None or not alive(worker.pid):
            if worker is not None:
                worker.close()
            self._made += 1
            log = f"{self.world.log}.{self._made}"
            worker = self._workers[way] = Worker(self._forge, way, log)
        return worker

    def rounds(self, number, budget_s):
        began = time.monotonic()
        for n in range(number):
            one = Round(self, n)
            try:
                one.run()
            except BaseException as error:
                error.add_note(f"seed {self.seed}, round {n}: {one!r}, execution {one.id}")
                raise
            if time.monotonic() - began > budget_s:
                break
        return n + 1, time.monotonic() - began

    def close(self):
        for worker in self._workers.values():
            worker.close()
        self._forge.close()


def play(world, rounds, budget_s):
    seed = int(os.environ.get("TENUTO_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    with contextlib.closing(Driver(world, seed)) as driver:
        done, took = driver.rounds(rounds, budget_s)
        states = {str(state): count for state, count in driver.states.items()}
        print(
            f"\nrandom kills: seed {seed}, {done} rounds, {sum(driver.kills.values())} kills "
            f"{driver.kills}, {states}, {driver.went_on} went on, {took / done * 1000:.0f} ms each"
        )
        assert not [one.id for one in world.executions() if one.running]
        for execution_id in driver.seen:
            assert not marked(execution_id)
    return done


@pytest.mark.promise("X11", "X8", "X12")
def test_random_kills(world):
    assert play(world, rounds=60, budget_s=40) >= 30


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.promise("X11", "X8", "X12")
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_random_kills(world, part):
    assert play(world, rounds=235, budget_s=120) >= 100
