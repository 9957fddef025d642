"""Started as `python -u python_runner.py` with TENUTO_CHANNEL naming a descriptor.

Python compiles the file it is started with every time, but keeps what it imports compiled: hence
this short file, which imports the long one.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenuto.interpreters.runners import python_program
else:
    import python_program  # this folder is sys.path[0]


def say_nothing(*_: object) -> None:
    """Stand in for sys.excepthook."""


del sys.modules["python_program"]  # the name is free for a module of the user's
try:
    status = python_program.main()
except KeyboardInterrupt:
    # Python then ends by SIGINT itself, which tells the starter more than a traceback.
    sys.excepthook = say_nothing
    raise
if status:
    sys.exit(status)
