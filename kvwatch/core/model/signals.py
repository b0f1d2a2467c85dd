"""The signals: what kvwatch reads of a vLLM server, under names that do not change with vLLM's releases.

A signal has the name of the exported metric without the prefix ``kvwatch_``. `dialect/vllm.py` lists vLLM's names for
it by release.

A row owns everything about its signal. A counter that a symptom looks at over a window needs ``windowed=`` on its row
and nothing else: the windows, the pace of its reading and the API's history follow from the row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kvwatch.core.model.named_rows import NamedRows
from kvwatch.core.model.outcome import Pace


class SignalKind(StrEnum):
    """The type of a signal, as in Prometheus; INFO carries its facts in labels."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class SignalScope(StrEnum):
    """Whether a signal is about one engine or the whole server."""

    ENGINE = "engine"
    TARGET = "target"


class Windowed(NamedTuple):
    """A counter of a signal that windows and the API's history keep.

    `unit` is what it counts. `part` is empty for the whole signal (the sum over its label; of a histogram its count),
    else a value of its label, or ``sum`` of a histogram.
    """

    unit: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal.

    `dimension` is the label that splits it, with few values; empty for most. Without the `core` signals the regime is
    unknown. A `slow` signal is read on full pages only, unless it is windowed: a counter read only there has no rate
    between two of them. A value below `low` or above `high` can't be true, so it counts as missing.
    """

    name: str
    help: str
    kind: SignalKind
    dimension: str = ""
    core: bool = False
    slow: bool = False
    windowed: tuple[Windowed, ...] = ()
    scope: SignalScope = SignalScope.ENGINE
    low: float = 0.0
    high: float = math.inf

    @property
    def pace(self) -> Pace:
        """The pace at which the signal is read; of a histogram, its sum and count (buckets: full pages only)."""
        return Pace.FULL if self.slow and not self.windowed else Pace.FAST


_gauge = partial(Signal, kind=SignalKind.GAUGE)
_counter = partial(Signal, kind=SignalKind.COUNTER)
_histogram = partial(Signal, kind=SignalKind.HISTOGRAM, slow=True)
_REQUESTS, _TOKENS = Windowed("requests"), Windowed("tokens")

SIGNALS: tuple[Signal, ...] = (
    # -- the cache and the queue ------------------------------------------------------------------------
    _gauge(
        "kv_cache_usage_ratio",
        "Share of KV cache blocks that running requests hold, 0-1. Cached blocks that no request holds count as"
        " free: an idle server shows 0 with a warm cache.",
        core=True,
        high=1.0,
    ),
    _gauge("requests_running", "Requests in the running batch.", core=True),
    _gauge("requests_waiting", "Requests waiting in the engine's queue, for any reason.", core=True),
    _gauge(
        "requests_waiting_by_reason",
        "requests_waiting by reason: capacity (a slot, blocks or token budget) and deferred (LoRA slot, KV"
        " transfer, grammar). They are part of requests_waiting; do not add them to it.",
        dimension="reason",
    ),
    _gauge("requests_swapped", "Requests swapped out to CPU memory (v0 engine only)."),
    _gauge(
        "cpu_kv_cache_usage_ratio",
        "Share of the CPU swap space's blocks in use, 0-1 (v0 engine only).",
        high=1.0,
    ),
    _gauge(
        "requests_kv_fetch", "Requests whose KV cache a connector is fetching, by stage.", dimension="stage"
    ),
    _gauge(
        "engine_sleep_state",
        "1 for the engine's sleep state (awake, weights_offloaded, discard_all).",
        dimension="sleep_state",
        slow=True,
    ),
    # -- work -------------------------------------------------------------------------------------------
    _counter(
        "preemptions_total",
        "Preemptions. vLLM's v1 engine counts one only at the request's next output, and never if the request"
        " is aborted.",
        windowed=(Windowed("preemptions"),),
    ),
    _counter(
        "prompt_tokens_total",
        "Prompt tokens of requests that reached their first output, cached tokens included.",
        windowed=(_TOKENS,),
    ),
    _counter(
        "prompt_tokens_by_source_total",
        "Prompt tokens by the source of their KV (local_compute, local_cache_hit, external_kv_transfer).",
        dimension="source",
        windowed=(_TOKENS, Windowed("tokens", "local_cache_hit"), Windowed("tokens", "external_kv_transfer")),
    ),
    _counter(
        "prompt_tokens_recomputed_total", "Cached prompt tokens that were computed again (vLLM 0.16 to 0.19)."
    ),
    _counter("generation_tokens_total", "Generated tokens.", windowed=(_TOKENS,)),
    _counter(
        "requests_finished_total",
        "Finished requests by reason. vLLM does not count a request whose client disconnected.",
        dimension="reason",
        windowed=(_REQUESTS, Windowed("requests", "error"), Windowed("requests", "abort")),
    ),
    _counter(
        "admission_rejections_total",
        "Requests that the API server rejected because a queue limit was reached, by limit.",
        dimension="reason",
        windowed=(_REQUESTS,),
        scope=SignalScope.TARGET,
    ),
    _counter(
        "http_responses_total",
        "Responses with status 2xx to POST requests, by route, including those whose client disconnected.",
        dimension="handler",
        windowed=(Windowed("answers"),),
        scope=SignalScope.TARGET,
    ),
    _counter("corrupted_requests_total", "Requests whose output contained NaN.", slow=True),
    # -- prefix cache -----------------------------------------------------------------------------------
    _counter(
        "prefix_cache_queried_tokens_total",
        "Tokens looked up in the local prefix cache: since vLLM 0.27 once per request, before that at every"
        " attempt to schedule it.",
        windowed=(_TOKENS,),
    ),
    _counter("prefix_cache_hit_tokens_total", "Tokens found in the local prefix cache.", windowed=(_TOKENS,)),
    _counter(
        "external_prefix_cache_queried_tokens_total",
        "Tokens looked up in an external cache through a connector; since vLLM 0.16 only those that the local"
        " cache did not hold.",
        windowed=(_TOKENS,),
    ),
    _counter(
        "external_prefix_cache_hit_tokens_total", "Tokens found in an external cache.", windowed=(_TOKENS,)
    ),
    _counter(
        "prefix_cache_hit_tokens_by_tier_total",
        "Prefix-cache hit tokens by the tier that held them (device, host, disk, p2p, ...).",
        dimension="tier",
        slow=True,
    ),
    _counter("kv_offload_loaded_bytes_total", "Bytes of KV cache loaded from the offload tier.", slow=True),
    _counter("kv_offload_stored_bytes_total", "Bytes of KV cache stored in the offload tier.", slow=True),
    _counter(
        "kv_offload_skipped_stores_total",
        "Stores skipped because the offload tier was full.",
        slow=True,
    ),
    _gauge(
        "prefix_cache_lifetime_hit_ratio",
        "The v0 engine's own prefix cache hit rate since its start, 0-1. It is exported but not judged, because"
        " it covers no window.",
        slow=True,
        high=1.0,
    ),
    _counter("multimodal_cache_queried_items_total", "Items looked up in the multimodal cache.", slow=True),
    _counter("multimodal_cache_hit_items_total", "Items found in the multimodal cache.", slow=True),
    # -- speculative decoding ---------------------------------------------------------------------------
    _counter("spec_decode_draft_tokens_total", "Draft tokens proposed.", slow=True),
    _counter("spec_decode_accepted_tokens_total", "Draft tokens accepted.", slow=True),
    # -- latencies and lengths ----------------------------------------------------------------------------
    _histogram("time_to_first_token_seconds", "Arrival to first token, one observation per request."),
    _histogram(
        "inter_token_latency_seconds",
        "Time between two outputs of a request. With speculative decoding, one output can have several tokens.",
    ),
    _histogram("e2e_request_latency_seconds", "Arrival to last token, of finished requests."),
    _histogram("request_queue_time_seconds", "First queued to first scheduled, of finished requests."),
    _histogram("request_prefill_time_seconds", "First scheduled to first token, of finished requests."),
    _histogram(
        "request_decode_time_seconds",
        "First to last token, of finished requests. It includes preemptions in between.",
    ),
    _histogram(
        "request_prompt_tokens",
        "Prompt length in tokens, of finished requests.",
        windowed=(_REQUESTS, Windowed("tokens", "sum")),
    ),
    _histogram("request_generation_tokens", "Generated length in tokens, of finished requests."),
    _histogram("iteration_tokens", "Tokens per engine step.", windowed=(Windowed("engine steps"),)),
    # -- the server -------------------------------------------------------------------------------------
    _gauge(
        "engine_start_time_seconds",
        "Start of the vLLM server process, unix seconds.",
        slow=True,
        scope=SignalScope.TARGET,
    ),
    Signal("cache_config", "vLLM's cache configuration, as labels.", SignalKind.INFO, slow=True),
)

BY_NAME = NamedRows(
    {signal.name: signal for signal in SIGNALS}, "add a Signal row to kvwatch/core/model/signals.py"
)

CORE: tuple[str, ...] = tuple(signal.name for signal in SIGNALS if signal.core)
"""Signals without which the regime of an engine is unknown."""


class WindowedCounter(NamedTuple):
    """One windowed counter. `name` is the signal's, or ``signal/part``: a column of the API's history."""

    name: str
    signal: Signal
    part: str
    unit: str


WINDOWED: tuple[WindowedCounter, ...] = tuple(
    WindowedCounter(f"{signal.name}/{part}" if part else signal.name, signal, part, unit)
    for signal in SIGNALS
    for unit, part in signal.windowed
)
"""All windowed counters, in the order of their rows."""
