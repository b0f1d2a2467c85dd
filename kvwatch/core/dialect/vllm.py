"""vLLM's names for kvwatch's signals, by generation. The only file that spells them.

How a name is recognised
    A sample name is a *spelling* (``vllm:`` in vLLM itself, ``ray_vllm_`` and others in relays), a *bare name* from
    the table below and, for counters, a ``_total`` that some relays drop. Names are compared whole, never by
    substring: ``kv_offload_cpu_cache_usage_perc`` is not ``kv_cache_usage_perc``.

How an alias is chosen
    By what a page exposes, newest first, never by a version. During a deprecation both names are exposed with the
    same value; the first row of a signal with an unambiguous value wins, and values are never added. If a name
    changed its meaning, the row says which HELP text it goes with.

A name of a new vLLM release needs one row here and a capture that contains it. Until then an operator can add it with
the setting aliases.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.signals import BY_NAME, Signal, SignalKind


class Unit(StrEnum):
    """The unit of the exposed number, if it is not the signal's."""

    SAME = "same"
    BLOCKS = "blocks"
    """KV cache blocks; multiplied by the block size they give tokens."""
    UNKNOWN = "unknown"
    """Blocks or tokens, and nothing on the page says which."""


@dataclass(frozen=True, slots=True)
class Alias:
    """One exposed name of one signal.

    `name` is as in the text format, without the spelling's prefix. `label` becomes the signal's dimension. A series
    must have the labels in `where`; `excluded` are values of the dimension that do not count. The row applies only if
    `help_has` occurs in the family's HELP. `foreign` names are not vLLM's own and have no prefix. `late` names appear
    with the first use and are requested before that. `releases` are those that expose the name, `option` the server
    option that exposes it, `caveat` what to know when reading the number.
    """

    signal: str
    name: str
    releases: str
    label: str = ""
    unit: Unit = Unit.SAME
    help_has: str = ""
    where: tuple[tuple[str, str], ...] = ()
    excluded: frozenset[str] = frozenset()
    foreign: bool = False
    late: bool = False
    option: str = ""
    caveat: str = ""


_NO_INFERENCE = frozenset(
    {
        "/tokenize", "/detokenize", "/v1/chat/completions/render", "/v1/completions/render", "/load", "/ping",
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/pause", "/resume",
        "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/start_profile", "/stop_profile",
        "/collective_rpc", "/scale_elastic_ep", "/is_scaling_elastic_ep",
    }
)  # fmt: skip
"""Routes whose requests do not reach the engine."""

_HIDDEN = "--show-hidden-metrics-for-version"
_OFFLOAD = "--kv-offloading-size"


def _gpu_prefix_aliases(signal: str, name: str, verb: str) -> tuple[Alias, ...]:
    """A name that counted blocks before vLLM 0.9.0 and tokens since; only its HELP text says which."""
    blocks = Alias(signal, name, "v1 0.7.3-0.8.5", unit=Unit.BLOCKS, help_has=f"{verb} block")
    return (
        Alias(signal, name, "v1 0.9.0-0.10.2, hidden 0.11", help_has=f"{verb} token"),
        replace(blocks, caveat="vLLM before 0.9.0 counts whole blocks only"),
        Alias(signal, name, "v1, HELP dropped by a relay", unit=Unit.UNKNOWN),
    )


ALIASES: tuple[Alias, ...] = (
    Alias("kv_cache_usage_ratio", "kv_cache_usage_perc", "v1 0.9.2+"),
    Alias("kv_cache_usage_ratio", "gpu_cache_usage_perc", "v0; v1 0.7.1-0.10.2, hidden 0.11"),
    Alias("requests_running", "num_requests_running", "all"),
    Alias("requests_waiting", "num_requests_waiting", "all"),
    Alias("requests_waiting_by_reason", "num_requests_waiting_by_reason", "v1 0.20.0+", label="reason"),
    Alias("requests_swapped", "num_requests_swapped", "v0 0.2.7-0.9.0, hidden from 0.8.3", option=_HIDDEN),
    Alias(
        "cpu_kv_cache_usage_ratio",
        "cpu_cache_usage_perc",
        "v0 0.2.7-0.9.0, hidden from 0.8.3",
        option=_HIDDEN,
    ),
    Alias(
        "requests_kv_fetch",
        "num_requests_kv_fetch_by_stage",
        "v1 0.32.0+",
        label="stage",
        option="--kv-transfer-config",
    ),
    Alias("engine_sleep_state", "engine_sleep_state", "v1 0.11.1+", label="sleep_state"),
    Alias("preemptions_total", "num_preemptions_total", "v0 0.4.3+; v1 0.8.0+"),
    Alias("prompt_tokens_total", "prompt_tokens_total", "v0 0.3.3+; v1 0.7.1+"),
    Alias("prompt_tokens_by_source_total", "prompt_tokens_by_source_total", "v1 0.16.0+", label="source"),
    Alias("prompt_tokens_recomputed_total", "prompt_tokens_recomputed_total", "v1 0.16.0-0.19.1"),
    Alias("generation_tokens_total", "generation_tokens_total", "v0 0.3.3+; v1 0.7.1+"),
    Alias(
        "requests_finished_total", "request_success_total", "v0 0.4.2+; v1 0.7.2+", label="finished_reason"
    ),
    Alias("admission_rejections_total", "admission_rejections_total", "v1 0.32.0+", label="reason"),
    Alias(
        "http_responses_total",
        "http_requests_total",
        "v1, Python front end",
        label="handler",
        where=(("method", "POST"), ("status", "2xx")),
        excluded=_NO_INFERENCE,
        foreign=True,
        late=True,
    ),
    Alias(
        "corrupted_requests_total",
        "corrupted_requests_total",
        "v1 0.11.1+",
        option="VLLM_COMPUTE_NANS_IN_LOGITS",
    ),
    Alias("prefix_cache_queried_tokens_total", "prefix_cache_queries_total", "v1 0.9.2+"),
    *_gpu_prefix_aliases("prefix_cache_queried_tokens_total", "gpu_prefix_cache_queries_total", "queried"),
    Alias("prefix_cache_hit_tokens_total", "prefix_cache_hits_total", "v1 0.9.2+"),
    *_gpu_prefix_aliases("prefix_cache_hit_tokens_total", "gpu_prefix_cache_hits_total", "cached"),
    Alias("external_prefix_cache_queried_tokens_total", "external_prefix_cache_queries_total", "v1 0.11.1+"),
    Alias("external_prefix_cache_hit_tokens_total", "external_prefix_cache_hits_total", "v1 0.11.1+"),
    Alias(
        "prefix_cache_hit_tokens_by_tier_total",
        "prompt_tokens_cached_by_source_total",
        "v1 0.32.0+",
        label="source",
    ),
    Alias("kv_offload_loaded_bytes_total", "kv_offload_load_bytes_total", "v1 0.24.0+", option=_OFFLOAD),
    Alias("kv_offload_stored_bytes_total", "kv_offload_store_bytes_total", "v1 0.24.0+", option=_OFFLOAD),
    Alias(
        "kv_offload_skipped_stores_total", "kv_offload_stores_skipped_total", "v1 0.24.0+", option=_OFFLOAD
    ),
    Alias(
        "prefix_cache_lifetime_hit_ratio",
        "gpu_prefix_cache_hit_rate",
        "v0 0.5.5-0.9.0, hidden from 0.8.3",
        option=_HIDDEN,
    ),
    Alias("multimodal_cache_queried_items_total", "mm_cache_queries_total", "v1 0.11.1+"),
    Alias("multimodal_cache_hit_items_total", "mm_cache_hits_total", "v1 0.11.1+"),
    Alias(
        "spec_decode_draft_tokens_total",
        "spec_decode_num_draft_tokens_total",
        "v0 0.5.3-0.9.2; v1 0.8.3+",
        option="--speculative-config",
    ),
    Alias(
        "spec_decode_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "v0 0.5.3-0.9.2; v1 0.8.3+",
        option="--speculative-config",
    ),
    Alias("time_to_first_token_seconds", "time_to_first_token_seconds", "v0 0.3.3+; v1 0.7.1+"),
    Alias("inter_token_latency_seconds", "inter_token_latency_seconds", "0.10.2+"),
    Alias(
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
        "v0 0.3.3-0.10.2; v1 0.7.1-0.11.2, hidden to 0.14",
    ),
    Alias("e2e_request_latency_seconds", "e2e_request_latency_seconds", "v0 0.3.3+; v1 0.7.3+"),
    Alias("request_queue_time_seconds", "request_queue_time_seconds", "v0 0.6.4+; v1 0.7.3+"),
    Alias("request_queue_time_seconds", "time_in_queue_requests", "v0 0.6.4-0.9.0, hidden from 0.8.3"),
    Alias("request_prefill_time_seconds", "request_prefill_time_seconds", "v0 0.6.4+; v1 0.7.3+"),
    Alias("request_decode_time_seconds", "request_decode_time_seconds", "v0 0.6.4+; v1 0.7.3+"),
    Alias("request_prompt_tokens", "request_prompt_tokens", "v0 0.4.2+; v1 0.7.1+"),
    Alias("request_generation_tokens", "request_generation_tokens", "v0 0.4.2+; v1 0.7.1+"),
    Alias("iteration_tokens", "iteration_tokens_total", "v0 0.6.4+; v1 0.7.3+"),
    Alias("engine_start_time_seconds", "process_start_time_seconds", "v1 in one process", foreign=True),
    Alias("cache_config", "cache_config_info", "v0 0.3.3+; v1 0.8.0+"),
)

"""One row per name; newest first within a signal."""

LATE: frozenset[str] = frozenset(alias.name for alias in ALIASES if alias.late)
"""Names that are requested though they may not be exposed yet."""

NOT_READ: frozenset[str] = frozenset(
    {
        "avg_generation_throughput_toks_per_s", "avg_prompt_throughput_toks_per_s", "cpu_prefix_cache_hit_rate",
        "diffusion_num_canvas_positions_total", "diffusion_num_committed_tokens_total",
        "diffusion_num_denoising_steps_total", "estimated_flops_per_gpu_total",
        "estimated_read_bytes_per_gpu_total", "estimated_write_bytes_per_gpu_total",
        "hf3fs_load_duration_seconds", "hf3fs_num_failed_load_total", "hf3fs_num_failed_save_total",
        "hf3fs_save_duration_seconds", "hisparse_cache_hits_total", "hisparse_cache_misses_total",
        "hisparse_host_block_idle_before_evict_seconds", "hisparse_host_block_lifetime_seconds",
        "hisparse_host_block_reuse_gap_seconds", "hisparse_host_cache_usage_perc",
        "hisparse_host_to_device_bytes_total", "hisparse_pending_page_transfers",
        "kv_block_idle_before_evict_seconds", "kv_block_lifetime_seconds", "kv_block_reuse_gap_seconds",
        "kv_offload_allocation_failure_total", "kv_offload_config_info", "kv_offload_cpu_allocation_size",
        "kv_offload_cpu_cache_read_usage_perc", "kv_offload_cpu_cache_usage_perc",
        "kv_offload_cpu_cache_write_usage_perc", "kv_offload_load_size", "kv_offload_load_time_total",
        "kv_offload_lookup_async_delay_seconds", "kv_offload_lookup_sync_delay_seconds", "kv_offload_size",
        "kv_offload_store_size", "kv_offload_store_time_total", "kv_offload_tiering_active_cascade_jobs",
        "kv_offload_tiering_active_promotion_jobs", "kv_offload_tiering_backpressure_blocks_dropped_total",
        "kv_offload_tiering_backpressure_store_latency_ema",
        "kv_offload_tiering_backpressure_stores_dropped_total", "kv_offload_tiering_cascade_job_failures_total",
        "kv_offload_tiering_chunk_hits_total", "kv_offload_tiering_chunk_queries_total",
        "kv_offload_tiering_lookup_async_delay_seconds", "kv_offload_tiering_lookup_sync_delay_seconds",
        "kv_offload_tiering_primary_read_usage_perc", "kv_offload_tiering_primary_write_usage_perc",
        "kv_offload_tiering_promotion_allocation_failures_total",
        "kv_offload_tiering_promotion_job_failures_total", "kv_offload_tiering_promotion_latency_seconds",
        "kv_offload_tiering_read_bytes_total", "kv_offload_tiering_read_time_total",
        "kv_offload_tiering_write_bytes_total", "kv_offload_tiering_write_time_total",
        "kv_offload_total_bytes_total", "kv_offload_total_time_total", "kvcr_duration_seconds", "kvcr_state",
        "kvcr_transfer_blocks_total", "kvcr_transfer_bytes_total", "lora_requests_info",
        "model_execute_time_milliseconds", "model_forward_time_milliseconds", "mooncake_bytes_transferred",
        "mooncake_num_descriptors", "mooncake_num_failed_recvs_total", "mooncake_num_failed_transfers_total",
        "mooncake_num_kv_expired_reqs_total", "mooncake_store_operation_bytes_total",
        "mooncake_store_operation_failed_keys_total", "mooncake_store_operation_keys_total",
        "mooncake_store_operation_time_seconds", "mooncake_store_operation_total", "mooncake_xfer_time_seconds",
        "nixl_bytes_transferred", "nixl_num_descriptors", "nixl_num_failed_notifications_total",
        "nixl_num_failed_transfers_total", "nixl_num_kv_expired_reqs_total",
        "nixl_num_notifications_after_expiry_total", "nixl_post_time_seconds", "nixl_xfer_time_seconds",
        "prompt_tokens_cached_total", "request_inference_time_seconds", "request_max_num_generation_tokens",
        "request_num_preemptions", "request_params_best_of", "request_params_max_tokens", "request_params_n",
        "request_prefill_kv_computed_tokens", "request_time_per_output_token_seconds",
        "rl_weight_update_operation_duration_seconds", "rl_weight_update_operations_in_flight",
        "simple_kv_offload_info", "simple_kv_offload_load_blocks_total",
        "simple_kv_offload_pending_store_blocks", "simple_kv_offload_save_outcomes_total",
        "simple_kv_offload_used_blocks", "sleep_mode_operation_duration_seconds",
        "sleep_mode_operations_in_flight", "spec_decode_draft_acceptance_rate", "spec_decode_efficiency",
        "spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_drafts_total",
        "spec_decode_num_emitted_tokens_total", "tokens_total", "tool_call_parser_invocations_total",
        "umbp_transfer_bytes_total", "umbp_transfer_completed_total", "umbp_transfer_failed_total",
        "umbp_transfer_submitted_total", "watermark_requests_total", "websocket_connection_duration_seconds",
        "websocket_connections_active", "websocket_connections_total",
    }
)  # fmt: skip
"""Families of vLLM that kvwatch knows and does not read; any other is reported as unknown."""

FEATURES: Mapping[str, str] = {
    "num_requests_swapped": "v0",
    "cpu_cache_usage_perc": "v0",
    "gpu_prefix_cache_hit_rate": "v0",
    "engine_sleep_state": "preempted lookups excluded",  # 0.11.1+
    "external_prefix_cache_queries_total": "preempted lookups excluded",
    "prompt_tokens_by_source_total": "prompt tokens by source",
    "num_requests_waiting_by_reason": "waiting by reason",
    "admission_rejections_total": "watermark",  # both came with 0.32.0
    "watermark_requests_total": "watermark",
    "lora_requests_info": "lora",
    "num_requests_kv_fetch_by_stage": "kv transfer",
    "kv_offload_load_bytes_total": "kv offload",
    "inter_token_latency_seconds": "gauges follow aborts",  # 0.10.2+: before, gauges keep their last values
}
"""Names whose presence shows what a running vLLM can do or how it counts."""

NATIVE_SPELLINGS = ("vllm:", "vllm_")
"""vLLM's own prefixes: with a colon, or (client library, OpenMetrics) with `_` in its place."""
RELAY_SPELLINGS = ("ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_", "vllm.")
"""Prefixes that relays write; read only if the setting spellings lists them."""
RAY = "ray_"
"""How the spellings of Ray Serve begin."""

CONFIG_LABELS = (
    "block_size", "num_gpu_blocks", "num_cpu_blocks", "cache_dtype", "enable_prefix_caching",
    "gpu_memory_utilization", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_cache_memory_bytes",
    "mamba_block_size", "mamba_cache_mode", "mamba_page_size_padded", "prefix_match_unit", "sliding_window",
)  # fmt: skip
"""Labels of the cache configuration that are read, out of dozens."""


class Part(StrEnum):
    """Which sample of a family a name is."""

    VALUE = "value"
    BUCKET = "bucket"
    SUM = "sum"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Role:
    """The meaning of one sample name: its possible aliases (by HELP), the part of the family, and the spelling.

    `exact` is false if a counter's ``_total`` is missing; the exact name is preferred if both are exposed.
    """

    aliases: tuple[tuple[int, Alias], ...]
    part: Part
    spelling: int
    exact: bool

    @property
    def signal(self) -> Signal:
        return BY_NAME[self.aliases[0][1].signal]


_CREATED = re.compile(r"_created$")
_SUFFIX = re.compile(r"_(bucket|sum|count|total|created|info|gsum|gcount)$")


@dataclass(frozen=True)
class Vocabulary:
    """The names that one kvwatch reads: the table and what the settings add.

    `spellings` are in order of preference; `extra` aliases come before the table's.
    """

    spellings: tuple[str, ...] = NATIVE_SPELLINGS
    extra: tuple[Alias, ...] = ()
    _memo: dict[str, Role | None] = field(default_factory=dict, repr=False, compare=False, hash=False)
    _by_name: dict[str, tuple[tuple[int, Alias], ...]] = field(
        default_factory=dict, repr=False, compare=False, hash=False
    )
    _sorted: list[str] = field(default_factory=list, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        for rank, alias in enumerate((*self.extra, *ALIASES)):
            self._by_name[alias.name] = (*self._by_name.get(alias.name, ()), (rank, alias))
        for name, aliases in self._by_name.items():
            self._sorted.extend([name] if aliases[0][1].foreign else [s + name for s in self.spellings])
        self._sorted.sort()

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[tuple[str, ...], tuple[Alias, ...]]]:
        return Vocabulary, (self.spellings, self.extra)

    def role(self, sample_name: str) -> Role | None:
        """The role of a sample name; None if it is not read."""
        try:
            return self._memo[sample_name]
        except KeyError:
            found = self._find(sample_name)
            if len(self._memo) < 4096:  # a page has a few hundred; bounds the memory for a hostile page
                self._memo[sample_name] = found
            return found

    def _find(self, sample_name: str) -> Role | None:
        aliases = self._by_name.get(sample_name)
        if aliases and aliases[0][1].foreign:
            return Role(aliases, Part.VALUE, 0, True)
        for spelling, prefix in enumerate(self.spellings):
            if sample_name.startswith(prefix):
                found = self._bare(sample_name[len(prefix) :], spelling)
                if found:
                    return found
        return None

    def _bare(self, name: str, spelling: int) -> Role | None:
        for part in (Part.BUCKET, Part.SUM, Part.COUNT):
            stem = name.removesuffix(f"_{part}")
            if stem != name and stem in self._by_name:
                aliases = self._by_name[stem]
                if BY_NAME[aliases[0][1].signal].kind is SignalKind.HISTOGRAM:
                    return Role(aliases, part, spelling, True)
        for candidate, exact in ((name, True), (f"{name}_total", False)):
            aliases = self._by_name.get(candidate, ())
            if aliases and not aliases[0][1].foreign:
                kind = BY_NAME[aliases[0][1].signal].kind
                if kind is not SignalKind.HISTOGRAM and (exact or kind is SignalKind.COUNTER):
                    return Role(aliases, Part.VALUE, spelling, exact)
        return None

    def begins(self, text: str) -> bool:
        """Whether the name of any sample that is read begins with `text`."""
        i = bisect_left(self._sorted, text)
        return i < len(self._sorted) and self._sorted[i].startswith(text)

    def native(self, family: str) -> str | None:
        """The bare name of a vLLM family, known or not; None for a family of anything else."""
        for prefix in self.spellings:
            if prefix and family.startswith(prefix):
                return family[len(prefix) :]
        return None

    def known(self, bare: str) -> bool:
        """Whether a family, by its bare name, is read or listed in `NOT_READ`."""
        if _CREATED.search(bare):
            return True
        stem = _SUFFIX.sub("", bare)
        return any(
            name in self._by_name or name in NOT_READ
            for name in (bare, stem, f"{bare}_total", f"{stem}_total", f"{bare}_info", f"{stem}_info")
        )

    def names_of(self, signal: str) -> tuple[str, ...]:
        """The names that are looked for, newest first, to show if the signal is missing."""
        prefix = self.spellings[0] if self.spellings else ""
        names = [
            alias.name if alias.foreign else prefix + alias.name
            for alias in (*self.extra, *ALIASES)
            if alias.signal == signal
        ]
        return tuple(dict.fromkeys(names))

    def options_of(self, signal: str) -> tuple[str, ...]:
        """Server options that expose a signal that is off by default."""
        found = (a.option for a in (*self.extra, *ALIASES) if a.signal == signal and a.option)
        return tuple(dict.fromkeys(found))


def sample_names(vocabulary: Vocabulary, exposed: Sequence[str], pace: Pace) -> tuple[str, ...]:
    """The sample names to request at a pace, out of those that a full page exposed.

    At the FAST pace, buckets and slow signals are left out; of windowed histograms, count and sum stay.
    """
    roles = {name: role for name in exposed if (role := vocabulary.role(name)) is not None}
    in_blocks = any(alias.unit is Unit.BLOCKS for role in roles.values() for _, alias in role.aliases)
    wanted = []
    for name, role in roles.items():
        fast = role.part is not Part.BUCKET and role.signal.pace is Pace.FAST
        config = (
            in_blocks and role.signal.kind is SignalKind.INFO
        )  # it has the block size, to convert blocks to tokens
        if pace is Pace.FULL or fast or config:
            wanted.append(name)
    return (*wanted, *sorted(LATE.difference(roles)))
