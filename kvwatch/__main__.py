"""``python -m kvwatch`` and the command ``kvwatch``.

Signal handlers come before all other imports. The first process of a container ignores signals without a handler,
even SIGTERM; any other process would print a traceback if Ctrl-C came while its modules load.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the command line and returns its exit code."""
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it serves; it reads its settings later anyway
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)

    from kvwatch.cli import main as run  # noqa: PLC0415 - slow, so after the handlers

    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands clean up at Ctrl-C
    try:
        return run()
    finally:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)  # the process is ending


def _end(number: int, _: FrameType | None) -> None:
    """Ends the process by the signal; the first process of a container survives that and ends by its exit code."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
