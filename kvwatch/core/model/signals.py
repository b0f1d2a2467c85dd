"""What kvwatch understands of a vLLM server, whatever vLLM calls it.

A row is a signal: its name is the exported metric's name without the ``kvwatch_`` prefix, so that a person
who has seen one knows the other. Which vLLM name stands for it in which release is in `vllm.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.model.outcome import Pace


class SignalKind(StrEnum):
    """The kind of a signal, in Prometheus' words; INFO carries its facts in labels."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Level(StrEnum):
    """Whose signal it is: one engine's, or the whole server's."""

    ENGINE = "engine"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing kvwatch understands.

    `dimension` is the label that splits it (its values are few), empty for most. `core` signals are those
    without which no regime can be told. `low` and `high` bound what can be true; a value outside is
    missing, with that as the reason.
    """

    name: str
    kind: SignalKind
    help: str
    dimension: str = ""
    core: bool = False
    pace: Pace = Pace.FAST
    level: Level = Level.ENGINE
    low: float = 0.0
    high: float = math.inf


_G, _C, _H = SignalKind.GAUGE, SignalKind.COUNTER, SignalKind.HISTOGRAM

SIGNALS: tuple[Signal, ...] = (
    # -- the cache and the queue ------------------------------------------------------------------------
    Signal(
        "kv_cache_usage_ratio",
        _G,
        core=True,
        high=1.0,
        help="Fraction of KV cache blocks held by live requests, 0-1. Cached blocks that nobody holds count as"
        " free, so an idle server shows 0 with a warm cache.",
    ),
    Signal("requests_running", _G, core=True, help="Requests in the running batch."),
    Signal(
        "requests_waiting",
        _G,
        core=True,
        help="Requests waiting in the engine's queue, for whatever reason.",
    ),
    Signal(
        "requests_waiting_by_reason",
        _G,
        dimension="reason",
        help="The parts of requests_waiting: capacity (a slot, blocks or token budget) and deferred (LoRA slot,"
        " KV transfer, grammar). Do not add them to it.",
    ),
    Signal("requests_swapped", _G, help="Requests swapped out to CPU memory (v0 engine only)."),
    Signal(
        "cpu_kv_cache_usage_ratio",
        _G,
        high=1.0,
        help="Fraction of the CPU swap space's blocks in use, 0-1 (v0 engine only).",
    ),
    Signal(
        "requests_kv_fetch",
        _G,
        dimension="stage",
        help="Requests whose KV cache is being fetched through a connector, by stage.",
    ),
    Signal(
        "engine_sleep_state",
        _G,
        dimension="sleep_state",
        pace=Pace.FULL,
        help="1 for the sleep state that the engine is in (awake, weights_offloaded, discard_all).",
    ),
    # -- work -------------------------------------------------------------------------------------------
    Signal(
        "preemptions_total",
        _C,
        help="Preemptions. vLLM's v1 engine counts one at the request's next output: late, or never if it was"
        " aborted.",
    ),
    Signal(
        "prompt_tokens_total",
        _C,
        help="Prompt tokens of requests that reached their first output, cached ones included.",
    ),
    Signal(
        "prompt_tokens_by_source_total",
        _C,
        dimension="source",
        help="Prompt tokens by where their KV came from (local_compute, local_cache_hit, external_kv_transfer).",
    ),
    Signal(
        "prompt_tokens_recomputed_total",
        _C,
        help="Cached prompt tokens that were computed again all the same (vLLM 0.16 to 0.19).",
    ),
    Signal("generation_tokens_total", _C, help="Tokens generated."),
    Signal(
        "requests_finished_total",
        _C,
        dimension="reason",
        help="Finished requests by reason. A request whose client went away is counted nowhere.",
    ),
    Signal(
        "admission_rejections_total",
        _C,
        dimension="reason",
        level=Level.TARGET,
        help="Requests refused at the front because a queue limit was reached, by limit.",
    ),
    Signal(
        "http_responses_total",
        _C,
        dimension="handler",
        level=Level.TARGET,
        help="Answers of the server to POST requests with a status of 2xx, by route; those that the client cut off"
        " are among them.",
    ),
    Signal("corrupted_requests_total", _C, pace=Pace.FULL, help="Requests whose output held NaN."),
    # -- prefix cache -----------------------------------------------------------------------------------
    Signal(
        "prefix_cache_queried_tokens_total",
        _C,
        help="Tokens looked up in the local prefix cache. Counted once a request since vLLM 0.27, at every"
        " attempt to schedule before.",
    ),
    Signal("prefix_cache_hit_tokens_total", _C, help="Tokens found in the local prefix cache."),
    Signal(
        "external_prefix_cache_queried_tokens_total",
        _C,
        help="Tokens looked up in an external cache through a connector; since vLLM 0.16 only those left after"
        " the local hit.",
    ),
    Signal("external_prefix_cache_hit_tokens_total", _C, help="Tokens found in an external cache."),
    Signal(
        "prefix_cache_hit_tokens_by_tier_total",
        _C,
        dimension="tier",
        pace=Pace.FULL,
        help="Prefix-cache hit tokens by the tier that held them (device, host, disk, p2p, ...).",
    ),
    Signal(
        "kv_offload_loaded_bytes_total",
        _C,
        pace=Pace.FULL,
        help="Bytes of KV cache brought back from the offload tier.",
    ),
    Signal(
        "kv_offload_stored_bytes_total",
        _C,
        pace=Pace.FULL,
        help="Bytes of KV cache written to the offload tier.",
    ),
    Signal(
        "kv_offload_skipped_stores_total",
        _C,
        pace=Pace.FULL,
        help="Times that KV cache was not offloaded because the tier had no room for it.",
    ),
    Signal(
        "prefix_cache_lifetime_hit_ratio",
        _G,
        pace=Pace.FULL,
        high=1.0,
        help="The v0 engine's own prefix hit rate since its start, 0-1. Not a window: shown, not judged.",
    ),
    Signal(
        "multimodal_cache_queried_items_total", _C, pace=Pace.FULL, help="Items looked up, multimodal cache."
    ),
    Signal("multimodal_cache_hit_items_total", _C, pace=Pace.FULL, help="Items found, multimodal cache."),
    # -- speculative decoding ---------------------------------------------------------------------------
    Signal("spec_decode_draft_tokens_total", _C, pace=Pace.FULL, help="Draft tokens proposed."),
    Signal("spec_decode_accepted_tokens_total", _C, pace=Pace.FULL, help="Draft tokens accepted."),
    # -- latencies and lengths, of requests that finished -------------------------------------------------
    Signal("time_to_first_token_seconds", _H, pace=Pace.FULL, help="Arrival to first output, one a request."),
    Signal(
        "inter_token_latency_seconds",
        _H,
        pace=Pace.FULL,
        help="Time between two outputs of one request; with speculative decoding an output is several tokens.",
    ),
    Signal(
        "e2e_request_latency_seconds", _H, pace=Pace.FULL, help="Arrival to last token, finished requests."
    ),
    Signal(
        "request_queue_time_seconds",
        _H,
        pace=Pace.FULL,
        help="First queued to first scheduled, finished requests.",
    ),
    Signal(
        "request_prefill_time_seconds",
        _H,
        pace=Pace.FULL,
        help="First scheduled to first token, finished requests.",
    ),
    Signal(
        "request_decode_time_seconds",
        _H,
        pace=Pace.FULL,
        help="First to last token, preemptions inside, finished requests.",
    ),
    Signal("request_prompt_tokens", _H, help="Prompt length in tokens, finished requests."),
    Signal(
        "request_generation_tokens", _H, pace=Pace.FULL, help="Generated length in tokens, finished requests."
    ),
    Signal("iteration_tokens", _H, help="Tokens per engine step."),
    # -- the server -------------------------------------------------------------------------------------
    Signal(
        "engine_start_time_seconds",
        _G,
        pace=Pace.FULL,
        level=Level.TARGET,
        help="Start of the vLLM server process, unix seconds.",
    ),
    Signal("cache_config", SignalKind.INFO, pace=Pace.FULL, help="vLLM's cache configuration, as labels."),
)

BY_NAME: dict[str, Signal] = {signal.name: signal for signal in SIGNALS}

#: Signals without which the regime of an engine is unknown.
CORE: tuple[str, ...] = tuple(signal.name for signal in SIGNALS if signal.core)
