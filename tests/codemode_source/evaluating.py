"""Evaluates prepared sources in a real engine, one context per session."""

from __future__ import annotations

import json
import re

import _quickjs

from tenuto.codemode.source import Prepared, prepare

_SETTLE = """
(p) => { globalThis.$state = ['pending']; p.then(v => $state = ['ok', v], e => $state = ['bad', e]); }
"""


class Raised(Exception):
    """What the source threw: name and message, line and column (both of the source)."""

    def __init__(self, text: str, prepared: Prepared) -> None:
        super().__init__(text.splitlines()[0])
        place = re.search(r"<input>:(\d+):(\d+)", text)
        self.line = int(place[1]) if place else 0
        self.column = prepared.column(self.line, int(place[2])) if place else 0


class Machine:
    """One engine context; sources are evaluated one after the other."""

    def __init__(self, language: str = "js", session: bool = False) -> None:
        self.context = _quickjs.Context()
        self.language = language
        self.session = session

    def prepare(self, code: str) -> Prepared:
        prepared = prepare(code, self.language, self.session)
        assert prepared.text.count("\n") == code.count("\n") + prepared.is_async, prepared.text
        return prepared

    def run(self, code: str) -> object:
        """Return the value, through JSON; raise Raised for what it throws."""
        prepared = self.prepare(code)
        try:
            value = self.context.eval(prepared.text)
        except _quickjs.JSException as error:
            raise Raised(str(error), prepared) from None
        if prepared.is_async:
            self.context.eval(_SETTLE)(value)
            while self.context.execute_pending_job():
                pass
            state = self.context.eval("$state[0]")
            assert state != "pending", "it awaits something that never comes"
            if state == "bad":
                text = "`${$state[1]}\\n${$state[1]?.stack}`"
                raise Raised(self.context.eval(text), prepared)
            value = self.context.eval("$state[1]")
        return self._plain(value)

    def _plain(self, value: object) -> object:
        if isinstance(value, _quickjs.Object):
            text = self.context.eval(
                "x => typeof x === 'function' ? undefined : JSON.stringify(x)"
            )(value)
            return None if text is None else json.loads(text)
        return value
