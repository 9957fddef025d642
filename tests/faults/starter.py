"""Starts programs, tells their ids, and then waits to be killed. Usage: starter.py fresh|zygote ARGV"""

import json
import os
import signal
import sys

from tenuto.dispatch.launch import FreshLauncher, ZygoteLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.work import Options

# Python's own handler would only note it, and a signal that comes just before the pause is slept over.
signal.signal(signal.SIGINT, signal.SIG_DFL)
launcher = FreshLauncher() if sys.argv[1] == "fresh" else ZygoteLauncher(2)
engine = BlockingEngine.open_here(launcher)
for argv in json.loads(sys.argv[2]):
    execution_id, _ = engine.start(engine.command(argv, Options(detached=True)))
    os.write(1, execution_id.encode() + b"\n")
os.write(1, b"started\n")
if sys.argv[3:] != ["leave"]:
    signal.pause()
