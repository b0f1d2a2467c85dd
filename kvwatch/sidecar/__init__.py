"""The running service: scrapes vLLM servers, keeps their states, serves and notifies.

Rooms: `polling` (scrapes), `serving` (HTTP), `page` (HTML), `notifying` (Alertmanager). `service` and `reload` put
them together; the modules beside them are shared.
"""

import sys
from types import ModuleType

_CLIENT = "httpx._main"


def _skip_httpx_command_line() -> None:
    """Keeps httpx from importing its command line client, and with it rich and pygments: 3.4 MiB and 50 ms."""
    if "httpx" not in sys.modules:
        stub = ModuleType(_CLIENT)
        stub.main = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(_CLIENT, stub)


_skip_httpx_command_line()
