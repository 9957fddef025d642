"""Stands in for the VM: speaks the channel's protocol, and runs the test's Python as its code."""

import json
import os
import struct
import sys

fd = int(os.environ["TENUTO_CHANNEL"])
line = os.fdopen(os.dup(fd), "rb")
number = 0
early = {}


def exactly(size):
    return line.read(size)


def send(**message):
    os.write(fd, json.dumps(message).encode() + b"\n")


def raw(data):
    while data:
        data = data[os.write(fd, data) :]


def ask(name, *args):
    """Make a call and return its number."""
    global number
    number += 1
    raw(
        json.dumps({"type": "call", "n": number, "name": name, "args": list(args)}).encode() + b"\n"
    )
    return number


def answer(n):
    """Wait for the answer to a call and return its message."""
    while n not in early:
        text = line.readline()
        if not text:
            sys.exit(9)
        message = json.loads(text)
        early[message["n"]] = message
    return early.pop(n)


def call(name, *args):
    """Make a call and return its value, or raise what it raised."""
    found = answer(ask(name, *args))
    if found["ok"]:
        return found["value"]
    raise RuntimeError(json.dumps(found["error"]))


def error(name, *args):
    """Make a call and return its error."""
    found = answer(ask(name, *args))
    assert not found["ok"], found
    return found["error"]


def value(what):
    send(type="value", json=what)


(size,) = struct.unpack("<I", exactly(4))
exec(compile(exactly(size).decode(), "<test>", "exec"), globals())
