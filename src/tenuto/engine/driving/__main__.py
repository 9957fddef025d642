"""How a driver's process begins: `python -m tenuto.engine.driving`, started by a task's keeper."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # An interrupt while all the rest loads ends it, and leaves no traceback in the task's output.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from tenuto.engine.driving.process import main

    sys.exit(main())
