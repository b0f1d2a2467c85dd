"""What this machine can do."""

from __future__ import annotations

import socket


def has_ipv6() -> bool:
    """Whether loopback has an IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
