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
    kind: SignalKind
    help: str
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


_G, _C, _H = SignalKind.GAUGE, SignalKind.COUNTER, SignalKind.HISTOGRAM
_REQUESTS, _TOKENS = Windowed("requests"), Windowed("tokens")

SIGNALS: tuple[Signal, ...] = (
    # -- the cache and the queue ------------------------------------------------------------------------
    Signal(
        "kv_cache_usage_ratio",
        _G,
        core=True,
        high=1.0,
        help="Share of KV cache blocks that running requests hold, 0-1. Cached blocks that no request holds count as"
        " free: an idle server shows 0 with a warm cache.",
    ),
    Signal("requests_running", _G, core=True, help="Requests in the running batch."),
    Signal("requests_waiting", _G, core=True, help="Requests waiting in the engine's queue, for any reason."),
    Signal(
        "requests_waiting_by_reason",
        _G,
        dimension="reason",
        help="requests_waiting by reason: capacity (a slot, blocks or token budget) and deferred (LoRA slot, KV"
        " transfer, grammar). Do not add them to requests_waiting.",
    ),
    Signal("requests_swapped", _G, help="Requests swapped out to CPU memory (v0 engine only)."),
    Signal(
        "cpu_kv_cache_usage_ratio",
        _G,
        high=1.0,
        help="Share of the CPU swap space's blocks in use, 0-1 (v0 engine only).",
    ),
    Signal(
        "requests_kv_fetch",
        _G,
        dimension="stage",
        help="Requests whose KV cache a connector is fetching, by stage.",
    ),
    Signal(
        "engine_sleep_state",
        _G,
        dimension="sleep_state",
        slow=True,
        help="1 for the engine's sleep state (awake, weights_offloaded, discard_all).",
    ),
    # -- work -------------------------------------------------------------------------------------------
    Signal(
        "preemptions_total",
        _C,
        windowed=(Windowed("preemptions"),),
        help="Preemptions. vLLM's v1 engine counts one at the request's next output: late, or never if the request"
        " was aborted.",
    ),
    Signal(
        "prompt_tokens_total",
        _C,
        windowed=(_TOKENS,),
        help="Prompt tokens of requests that reached their first output, cached tokens included.",
    ),
    Signal(
        "prompt_tokens_by_source_total",
        _C,
        dimension="source",
        windowed=(
            _TOKENS,
            Windowed("tokens", "local_cache_hit"),
            Windowed("tokens", "external_kv_transfer"),
        ),
        help="Prompt tokens by the source of their KV (local_compute, local_cache_hit, external_kv_transfer).",
    ),
    Signal(
        "prompt_tokens_recomputed_total",
        _C,
        help="Cached prompt tokens that were computed again (vLLM 0.16 to 0.19).",
    ),
    Signal("generation_tokens_total", _C, windowed=(_TOKENS,), help="Generated tokens."),
    Signal(
        "requests_finished_total",
        _C,
        dimension="reason",
        windowed=(_REQUESTS, Windowed("requests", "error"), Windowed("requests", "abort")),
        help="Finished requests by reason. vLLM does not count a request whose client disconnected.",
    ),
    Signal(
        "admission_rejections_total",
        _C,
        dimension="reason",
        scope=SignalScope.TARGET,
        windowed=(_REQUESTS,),
        help="Requests that the API server rejected because a queue limit was reached, by limit.",
    ),
    Signal(
        "http_responses_total",
        _C,
        dimension="handler",
        scope=SignalScope.TARGET,
        windowed=(Windowed("answers"),),
        help="Responses with status 2xx to POST requests, by route, including those whose client disconnected.",
    ),
    Signal("corrupted_requests_total", _C, slow=True, help="Requests whose output contained NaN."),
    # -- prefix cache -----------------------------------------------------------------------------------
    Signal(
        "prefix_cache_queried_tokens_total",
        _C,
        windowed=(_TOKENS,),
        help="Tokens looked up in the local prefix cache: once per request since vLLM 0.27, before that at every"
        " attempt to schedule it.",
    ),
    Signal(
        "prefix_cache_hit_tokens_total",
        _C,
        windowed=(_TOKENS,),
        help="Tokens found in the local prefix cache.",
    ),
    Signal(
        "external_prefix_cache_queried_tokens_total",
        _C,
        windowed=(_TOKENS,),
        help="Tokens looked up in an external cache through a connector; since vLLM 0.16 only those that the local"
        " cache did not hold.",
    ),
    Signal(
        "external_prefix_cache_hit_tokens_total",
        _C,
        windowed=(_TOKENS,),
        help="Tokens found in an external cache.",
    ),
    Signal(
        "prefix_cache_hit_tokens_by_tier_total",
        _C,
        dimension="tier",
        slow=True,
        help="Prefix-cache hit tokens by the tier that held them (device, host, disk, p2p, ...).",
    ),
    Signal(
        "kv_offload_loaded_bytes_total", _C, slow=True, help="KV cache bytes loaded from the offload tier."
    ),
    Signal("kv_offload_stored_bytes_total", _C, slow=True, help="KV cache bytes stored in the offload tier."),
    Signal(
        "kv_offload_skipped_stores_total",
        _C,
        slow=True,
        help="Times that KV cache was not offloaded because the tier was full.",
    ),
    Signal(
        "prefix_cache_lifetime_hit_ratio",
        _G,
        slow=True,
        high=1.0,
        help="The v0 engine's own prefix hit ratio since its start, 0-1. Shown but not judged: it covers no window.",
    ),
    Signal("multimodal_cache_queried_items_total", _C, slow=True, help="Multimodal cache: items looked up."),
    Signal("multimodal_cache_hit_items_total", _C, slow=True, help="Multimodal cache: items found."),
    # -- speculative decoding ---------------------------------------------------------------------------
    Signal("spec_decode_draft_tokens_total", _C, slow=True, help="Draft tokens proposed."),
    Signal("spec_decode_accepted_tokens_total", _C, slow=True, help="Draft tokens accepted."),
    # -- latencies and lengths ----------------------------------------------------------------------------
    Signal(
        "time_to_first_token_seconds",
        _H,
        slow=True,
        help="Arrival to first output, one observation per request.",
    ),
    Signal(
        "inter_token_latency_seconds",
        _H,
        slow=True,
        help="Time between two outputs of a request; with speculative decoding an output is several tokens.",
    ),
    Signal("e2e_request_latency_seconds", _H, slow=True, help="Arrival to last token, of finished requests."),
    Signal(
        "request_queue_time_seconds",
        _H,
        slow=True,
        help="First queued to first scheduled, of finished requests.",
    ),
    Signal(
        "request_prefill_time_seconds",
        _H,
        slow=True,
        help="First scheduled to first token, of finished requests.",
    ),
    Signal(
        "request_decode_time_seconds",
        _H,
        slow=True,
        help="First to last token, of finished requests; preemptions in between are included.",
    ),
    Signal(
        "request_prompt_tokens",
        _H,
        windowed=(_REQUESTS, Windowed("tokens", "sum")),
        help="Prompt length in tokens, of finished requests.",
    ),
    Signal(
        "request_generation_tokens", _H, slow=True, help="Generated length in tokens, of finished requests."
    ),
    Signal("iteration_tokens", _H, windowed=(Windowed("engine steps"),), help="Tokens per engine step."),
    # -- the server -------------------------------------------------------------------------------------
    Signal(
        "engine_start_time_seconds",
        _G,
        slow=True,
        scope=SignalScope.TARGET,
        help="Start of the vLLM server process, unix seconds.",
    ),
    Signal("cache_config", SignalKind.INFO, slow=True, help="vLLM's cache configuration, as labels."),
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
