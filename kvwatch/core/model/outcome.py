"""The outcome of one scrape: the bytes of a page, or one of a closed set of failures.

::

    Outcome
    ├── Scrape          the server answered 200 and the whole body was read
    └── ScrapeError     it did not; `kind` is one of Failure:
        ├── refused       nothing listens on the port
        ├── timeout       no complete answer in time
        ├── dns           the host name has no address
        ├── tls           the handshake or the certificate failed
        ├── http_status   an answer other than 200
        ├── too_large     more bytes, samples or label characters than allowed
        ├── malformed     not the exposition format, or truncated
        ├── empty         200 with an empty body
        ├── not_vllm      200 without any vLLM metric
        └── connection    the connection broke in any other way

The transport reports the first four and the last, the answer reports `http_status`, reading the body reports the
rest. Whatever the network or the server does ends as one of these; none of them is an exception.

Without a scrape, a server's log may still report numbers of its engines: `LogReport`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.core.model.snapshot import EngineKey, Snapshot


class Failure(StrEnum):
    """Why a scrape failed. Counted by kind; every kind starts at zero."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    DNS = "dns"
    TLS = "tls"
    HTTP_STATUS = "http_status"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    EMPTY = "empty"
    NOT_VLLM = "not_vllm"
    CONNECTION = "connection"


REACHABLE = frozenset({Failure.EMPTY, Failure.NOT_VLLM})
"""Failures in which a server answers on that port, but not with metrics of vLLM."""


class Pace(StrEnum):
    """How much of a page a scrape requests.

    FAST: gauges, counters, sums and counts, at every interval. FULL: buckets and information families as well, every
    `full_interval_s`.
    """

    FAST = "fast"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page as received.

    `wall` is unix seconds, for display only. `duration_s` is the time until the body was complete. `interval_s` is
    the poller's present interval. `narrowed`: the body holds only the families that were requested.
    """

    body: bytes
    wall: float
    duration_s: float = 0.0
    interval_s: float = 1.0
    pace: Pace = Pace.FULL
    narrowed: bool = False
    content_type: str = ""
    facts: ServerInfo | None = None
    gpu: GpuReading | None = None
    """The GPU reading since the previous outcome, if there was one."""
    log: LogVerdict | None = None
    """The verdict on the server's starts, if kvwatch reads its log."""


@dataclass(frozen=True, slots=True)
class ScrapeError:
    """A scrape that failed. `detail` is one line for people, without secrets."""

    kind: Failure
    detail: str
    wall: float
    duration_s: float = 0.0
    interval_s: float = 1.0
    gpu: GpuReading | None = None
    log: LogVerdict | None = None


Outcome = Scrape | ScrapeError


@dataclass(frozen=True, slots=True)
class LogReport:
    """Numbers of a server's engines from its log, in place of a page. Fields as in `Scrape`."""

    engines: Mapping[EngineKey, Snapshot]
    wall: float
    interval_s: float
    duration_s: float = 0.0
    facts: ServerInfo | None = None
    gpu: GpuReading | None = None
    log: LogVerdict | None = None
