"""The running service: scrapes, keeps the states, serves them."""

import sys
from types import ModuleType

_CLIENT = "httpx._main"


def _leave_out_the_command_line_of_httpx() -> None:
    """httpx imports its own command line client whenever what that needs is installed, and with it rich and pygments:
    3.4 MiB and 50 ms at the start of a service that never uses them."""
    if "httpx" not in sys.modules:
        stub = ModuleType(_CLIENT)
        stub.main = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(_CLIENT, stub)


_leave_out_the_command_line_of_httpx()
