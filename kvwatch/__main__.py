"""``python -m kvwatch`` and the command ``kvwatch``.

A container's first process ignores every signal that it has no handler for, SIGTERM too, and any other dies of one
with a traceback while its modules load. So what signals do is settled here, before anything else is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the command line; an exit code."""
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it serves: its settings are read after this
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)

    from kvwatch.cli import main as run  # noqa: PLC0415 - what takes time comes after the handlers

    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands clean up at Ctrl-C
    try:
        return run()
    finally:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)  # it is ending


def _end(number: int, _: FrameType | None) -> None:
    """Ends as by the signal itself; as the first process of a container, which it does not end, with its code."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
