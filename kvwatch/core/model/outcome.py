"""What one scrape came to: the bytes of a page, or one of a small closed set of failures.

::

    Outcome
    ├── Scrape          the server answered 200 and the body was read whole
    └── ScrapeError     it did not; `kind` is one of Failure:
        ├── refused       nothing listens there
        ├── timeout       no whole answer in time
        ├── dns           the host name has no address
        ├── tls           the handshake or the certificate failed
        ├── http_status   an answer, but not 200
        ├── too_large     more bytes, samples or label characters than allowed
        ├── malformed     not the exposition format, or cut short
        ├── empty         200 and nothing in it
        ├── not_vllm      200 and no vLLM metric in it
        └── connection    the connection broke in any other way

The first four and the last come from the transport, `http_status` from the answer, the rest from reading
the body. Anything the network or the remote can do ends as one of these; none of them is an exception.

Where there was no scrape, a server's log may still say something of its engines: `Logged`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.snapshot import EngineKey, Snapshot


class Failure(StrEnum):
    """Why a scrape gave nothing. Counted by kind, every kind initialised to zero."""

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


#: Failures in which a server answers on that port, so the target is reachable but says nothing of use.
REACHABLE = frozenset({Failure.EMPTY, Failure.NOT_VLLM})


class Pace(StrEnum):
    """How much of a page was asked for.

    FAST: gauges, counters, sums and counts, every interval. FULL: buckets and information families as well,
    every `slow_interval_s`.
    """

    FAST = "fast"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What other endpoints of the server said, read rarely; every field may be unknown (None)."""

    version: str | None = None
    max_model_len: Mapping[str, int] | None = None
    """Longest request in tokens, by served model name (``/v1/models``)."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page as it came.

    `wall` is unix seconds, to show to people and nothing else. `duration_s` is the time until the body was
    whole. `interval_s` is the spacing the poller keeps at present: two scrapes further apart than a few of
    them have a gap between them. `narrowed` says that only the families asked for are in the body.
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
    """What was read of the GPUs since the outcome before, if anything."""
    log: LogVerdict | None = None
    """What the server's log tells of its starts, if kvwatch is given it."""


@dataclass(frozen=True, slots=True)
class ScrapeError:
    """A scrape that gave nothing. `detail` is one line for people, without secrets."""

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
    """What the log of a server says of its engines at one instant, in place of a page. Fields as in `Scrape`."""

    engines: Mapping[EngineKey, Snapshot]
    wall: float
    interval_s: float
    duration_s: float = 0.0
    facts: ServerInfo | None = None
    gpu: GpuReading | None = None
    log: LogVerdict | None = None
