"""A model on loopback that follows a script, in the dialects that clients speak.

A script is a list of steps. Which one is next follows from the conversation that the client sends:
as many answers as the model has given before are done. A step is an answer, a failure, or a function
that makes one of what the model was shown, as a real model would. Every request is kept, so that a
test can look at what was really shown, and every answer is billed, as a provider would.

A request without tools is a title or a probe to most clients: unless a script asks for such
(`bare`, or a predicate of `when` that fits), it gets a title and is no part of a conversation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from tenuto.core.budget import Tokens
from tenuto.testing.models.books import Billed, Books
from tenuto.testing.models.http import Server
from tenuto.testing.models.scripts import By, Script, resolve
from tenuto.testing.models.steps import Answer, Seen, Silence, Step

TITLE = "A title"
_Waiter = tuple[asyncio.AbstractEventLoop, Callable[[Seen], bool], "asyncio.Future[Seen]"]


class Model:
    """Serves scripts until it is closed."""

    def __init__(self, port: int = 0, names: Sequence[str] = ("scripted",)) -> None:
        """Listen on loopback; `names` are the models that it lists. It answers to any name."""
        self.seen: list[Seen] = []
        """What belongs to a script, in order."""
        self.asked: list[Seen] = []
        """Every request to a model, those for titles too."""
        self.other: list[str] = []
        self.errors: list[str] = []
        self.names = tuple(names)
        self.books = Books()
        self._script = Script(())
        self._bare = False
        self._whens: list[Script] = []
        self._silences: list[Silence] = []
        self._waiters: list[_Waiter] = []
        self._bell = threading.Condition()
        self._closed = False
        self._server = Server(self, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    # scripts

    def play(self, *steps: Step, by: By = "spoken", bare: bool | None = None) -> None:
        """Begin a new script; what was shown before is forgotten, the books are not.

        `bare` takes requests without tools for part of it; so it is by "request", if nothing is said.
        """
        with self._bell:
            self._script = Script(steps, by)
            self._bare = by == "request" if bare is None else bare
            self.seen, self.errors = [], []

    def when(self, fits: Callable[[Seen], bool], *steps: Step, by: By = "spoken") -> None:
        """Add a script for the requests that a predicate picks; the first that fits is taken."""
        with self._bell:
            self._whens.append(Script(steps, by, fits))

    @property
    def steps(self) -> list[Step]:
        """The steps of what is played."""
        return self._script.steps

    def release(self) -> None:
        """End every silence that was kept so far."""
        with self._bell:
            silences, self._silences = self._silences, []
        for one in silences:
            one.release()

    # what was seen

    @property
    def shown(self) -> Seen:
        """What the model was shown last."""
        assert not self.errors, self.errors
        assert self.seen, f"the client asked no model: {self.other}"
        return self.seen[-1]

    @property
    def results(self) -> list[str]:
        """All results of tools that the model was shown."""
        return [one.text for one in self.shown.results]

    def until(self, wanted: Callable[[Seen], bool], patience: float = 60.0) -> Seen:
        """Wait until a request shows something."""
        with self._bell:
            for_it: list[Seen] = []

            def there() -> bool:
                for_it[:] = [one for one in self.seen if wanted(one)]
                return bool(for_it or self.errors)

            assert self._bell.wait_for(there, patience), f"never shown; last: {self.seen[-1:]}"
            assert not self.errors, self.errors
            return for_it[0]

    async def shown_soon(self, wanted: Callable[[Seen], bool] = bool) -> Seen:
        """Wait until a request shows something, one of those before included."""
        loop = asyncio.get_running_loop()
        with self._bell:
            for one in self.seen:
                if wanted(one):
                    return one
            assert not self.errors, self.errors
            waiter: _Waiter = (loop, wanted, loop.create_future())
            self._waiters.append(waiter)
        try:
            return await waiter[2]
        finally:
            with self._bell:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    # books

    @property
    def bill(self) -> list[Billed]:
        """What was billed, in the order in which answers began."""
        return self.books.all()

    def billed(self) -> Tokens:
        """Return the sum of all bills."""
        return sum((one.tokens for one in self.bill), Tokens())

    # what the server asks

    def answer(self, seen: Seen) -> tuple[Answer, bool]:
        """Return what is to be answered, and whether a script says so."""
        with self._bell:
            self.asked.append(seen)
        script = self._choose(seen)
        if script is None:
            return TITLE, False
        with self._bell:
            self.seen.append(seen)
            self._bell.notify_all()
            self._tell(seen)
        return self._next(script, seen), True

    def go_on(self, seen: Seen) -> Answer:
        """Return what follows a silence."""
        script = self._choose(seen)
        return TITLE if script is None else self._next(script, seen)

    def note(self, request: str) -> None:
        """Keep a request that no script is for."""
        with self._bell:
            self.other.append(request)

    def fault(self, what: str) -> None:
        """Keep what went wrong, and wake whoever waits."""
        with self._bell:
            self.errors.append(what)
            self._bell.notify_all()
            for loop, _, future in self._waiters:
                loop.call_soon_threadsafe(_fail, future, what)
            self._waiters.clear()

    def _choose(self, seen: Seen) -> Script | None:
        for script in list(self._whens):
            try:
                if script.fits is not None and script.fits(seen):
                    return script
            except Exception as error:
                self.fault(f"a predicate: {error!r}")
        return self._script if seen.tools or self._bare else None

    def _next(self, script: Script, seen: Seen) -> Answer:
        number, step = script.next(seen)
        try:
            answer = resolve(step, seen)
        except Exception as error:
            self.fault(f"step {number}: {error!r}")
            return "The script failed."
        if isinstance(answer, Silence):
            with self._bell:
                self._silences.append(answer)
                closed = self._closed
            if closed:
                answer.release()
        return answer

    def _tell(self, seen: Seen) -> None:
        for waiter in list(self._waiters):
            loop, wanted, future = waiter
            try:
                if wanted(seen):
                    self._waiters.remove(waiter)
                    loop.call_soon_threadsafe(_keep, future, seen)
            except Exception as error:
                self._waiters.remove(waiter)
                loop.call_soon_threadsafe(_fail, future, repr(error))

    # end

    def close(self) -> None:
        """Drop every connection; no thread and no socket is left. May be called twice."""
        with self._bell:
            if self._closed:
                return
            self._closed = True
        self._server.shutdown()
        self._thread.join()
        self._server.drop()
        self._server.server_close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Model:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


def _keep(future: asyncio.Future[Seen], seen: Seen) -> None:
    if not future.done():
        future.set_result(seen)


def _fail(future: asyncio.Future[Seen], what: str) -> None:
    if not future.done():
        future.set_exception(AssertionError(what))
