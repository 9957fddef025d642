"""The code-mode VM: what a keeper's stem becomes instead of executing a program.

`warm` is called in the image that keepers are forked from; `harden` and `rest` in a stem that waits for
its job, `run` with the job. From then on this process has its stdin and one line to its keeper, and no
way to get anything else.
"""

from __future__ import annotations

import gc
import marshal
import os
import socket
import struct
import time

from tenuto.codemode import hardening, source
from tenuto.codemode.line import receive
from tenuto.codemode.running import CHANNEL_FD, Stopped, Vm

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = [
    "CHANNEL_FD", "Stopped", "Vm", "begin", "harden", "image", "rest", "run", "warm",
]  # fmt: skip
_REHEARSALS = 16
_SAMPLES = {
    "js": "const a = await 1; a",
    "ts": "enum A { B = 1 } class C { constructor(private x: number) {} } await 1",
}


class _Image:
    """What a process brings along that will be a VM."""

    def __init__(self) -> None:
        self.vm = Vm()
        self.plan = hardening.Plan()
        self.size: tuple[int, int] = (0, 0)


_image: _Image | None = None
_missing: list[str] | None = None  # once it is hardened


def warm(languages: tuple[str, ...] = ("js", "ts"), rehearse: bool = False) -> None:
    """Make all that does not depend on a job; what follows it is forked from here."""
    global _image  # noqa: PLW0603  the image is what this process is
    if _image is None:
        _image = _Image()
        time.tzset()  # reads the files that local time needs, which no VM can
    # What is loaded at first use is loaded now: no VM can open a file.
    for language in languages:
        for session in (False, True):
            source.prepare(_SAMPLES[language], language, session)
    if rehearse:
        _rehearse()


def _rehearse() -> None:
    """Run some code in a VM that nobody will have.

    Python writes into the code of a function for its first calls. What is written here is shared by
    all VMs; what each would write for itself is a page of its own.
    """
    vm = Vm()
    near, far = socket.socketpair()
    vm.channel = far.fileno()
    for _ in range(_REHEARSALS):
        vm.tell({"type": "confined", "level": "none", "missing": []})
        vm.equip({}, [], vm.memory)
        vm.run_cell("const a = 1; a + 1")
        vm.run_cell("const a = await new Promise(r => setTimeout(r, 1)); a")
    near.close()
    far.close()


def harden(off: tuple[str, ...] = (), calls: tuple[str, ...] = (), files: int = 4) -> None:
    """Give up what the VM will not need, and tell what holds it now.

    This may be done before its job is known. A session needs some more system calls, and descriptors
    for the cell that runs.
    """
    global _missing
    assert _image is not None
    gc.disable()  # one run of it would touch every page of the image
    plan = hardening.Plan(calls, files) if calls else _image.plan
    _image.size = hardening.own_size()
    level, _missing = hardening.harden(plan, off)
    if _missing:
        _image.vm.tell({"type": "confined", "level": level, "missing": _missing})
    else:
        _image.vm.say(f'{{"type":"confined","level":"{level}"}}')  # as usual, and quick


def rest() -> None:
    """Touch what every run needs, while there is time: a page that is touched first costs time."""
    assert _image is not None
    _image.vm.machine.answer("{}")
    _image.vm.machine.settle()
    source.prepare("1", "js", False)
    marshal.loads(marshal.dumps({"vm": {"module": "", "off": []}, "limits": None}))
    struct.unpack("<I", b"1234")


def run(words: dict[str, Any]) -> NoReturn:
    """Be the VM that a job asks for, to its end."""
    wish: dict[str, Any] = words["vm"]
    language: str = wish.get("language") or "js"
    if _missing is None:
        warm((language,))
        harden(tuple(wish.get("off") or ()))
    code = receive(CHANNEL_FD)
    vm = begin(words)
    names = [one["name"] for one in words.get("functions") or ()]
    vm.equip(wish.get("inputs") or {}, names, vm.memory)
    if words.get("tools"):
        vm.offer(words["tools"])
    os._exit(vm.run_cell(code, language))


def image() -> Vm:
    """Return the context that code will run in."""
    assert _image is not None
    return _image.vm


def begin(words: dict[str, Any]) -> Vm:
    """Bound what the job bounds, and tell what holds now; return the VM to run code in."""
    assert _image is not None
    vm = _image.vm
    wish: dict[str, Any] = words["vm"]
    limits: dict[str, Any] = words.get("limits") or {}
    vm.memory = int(wish["memory"])
    hardening.bound(vm.memory, limits.get("cpu"), _image.size)
    if _missing and wish.get("level") == "require":
        text = f"the sandbox is required, and this is missing: {', '.join(_missing)}"
        vm.tell({"type": "exec_failed", "errno": 0, "text": text})
        os._exit(126)
    return vm
