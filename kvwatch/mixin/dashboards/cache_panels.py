"""A server's KV cache: its usage, its capacity, and whether the prefix cache hits."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GOOD, LOOK, ORANGE, SKY, VERMILLION, YELLOW
from kvwatch.mixin.dashboards.common import LIMITS, threshold_step, threshold_text
from kvwatch.mixin.dashboards.elements import (
    Column,
    Panel,
    PanelRow,
    ThresholdStep,
    graph,
    heatmap,
    ratio_panel,
    stacked,
    stat,
    table,
)
from kvwatch.mixin.dashboards.queries import ENGINE, QueryScope, highest, total, usage_share

_CONFIG = {
    "generation": "vLLM",
    "block_size": "block",
    "num_gpu_blocks": "blocks",
    "cache_dtype": "dtype",
    "enable_prefix_caching": "prefixes",
    "gpu_memory_utilization": "memory",
}
"""Labels of the cache's configuration, with their titles."""

_NO_CAPACITY = "Not exposed: capacity in tokens is unknown"


def full(scope: QueryScope) -> PanelRow:
    return PanelRow("Is the KV cache full?", (*_usage(scope), *_capacity(scope)))


def _usage(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        ratio_panel(
            "KV cache usage",
            {
                "peak of 1 min": highest(scope("kv_cache_usage_peak_1m_ratio")),
                "at the scrape": highest(scope("kv_cache_usage_ratio")),
            },
            "Share of KV cache blocks that running requests hold, fullest engine. The peak covers every scrape"
            " of kvwatch, the other line only those of Prometheus. The cache counts as full at"
            f" {threshold_text('regime.full_usage')} and above.",
            size=(9, 7),
            steps=(threshold_step("regime.full_usage", LOOK),),
            colours={"peak of 1 min": ORANGE, "at the scrape": BLUE},
        ),
        ratio_panel(
            "Time with a nearly full cache",
            {"usage ≥ {{threshold}}": usage_share(scope)},
            "Share of time with usage at or above each mark, over all engines that were scraped. Near 100 %"
            " without a queue: requests just fit. With a queue: the cache is the limit.",
            size=(7, 7),
            colours={"usage ≥ 0.9": YELLOW, "usage ≥ 0.95": ORANGE, "usage ≥ 0.99": VERMILLION},
        ),
        heatmap(
            "Distribution of KV cache usage",
            {"{{le}}": total(scope.increase("kv_cache_usage_sampled_ratio_bucket"), "le")},
            "How often each level of usage was seen, one observation per scrape of kvwatch. A band at the top:"
            " the cache stays full. A sawtooth: each preemption frees the blocks of one request.",
            unit="percentunit",
            size=(8, 7),
        ),
    )


def _capacity(scope: QueryScope) -> tuple[Panel, ...]:
    capacity = scope("kv_cache_capacity_tokens")
    labels = f"{ENGINE}, {', '.join(_CONFIG)}"
    return (
        graph(
            "KV cache demand",
            {"{{target}} {{engine}}": highest(scope("kv_cache_demand_ratio"), ENGINE)},
            "Usage × (running + waiting) / running, over 1 min: the share of the cache that all running and waiting"
            " requests need. 1: exactly full. 2: they need twice the cache. Use it for autoscaling. Requests"
            f" count as waiting for the cache at {threshold_text('regime.demand')} and above.",
            size=(7, 7),
            steps=(threshold_step("regime.demand"),),
            decimals=1,
        ),
        graph(
            "Tokens in use and capacity",
            {"capacity": total(capacity), "in use": total(f"{scope('kv_cache_usage_ratio')} * {capacity}")},
            "Tokens that running requests hold in the cache, and its capacity, over all selected engines. The"
            " rest is free or holds cached prefixes.",
            unit="short",
            size=(6, 7),
            colours={"capacity": ORANGE, "in use": BLUE},
            absent=_NO_CAPACITY,
        ),
        stat(
            "Capacity",
            {"tokens": total(capacity)},
            "Tokens that fit in the KV cache, over all selected engines. To raise it: --gpu-memory-utilization,"
            " --kv-cache-dtype fp8 (check answer quality first), more GPUs.",
            unit="locale",
            size=(3, 7),
            base=SKY,
            absent=_NO_CAPACITY,
        ),
        table(
            "Cache configuration",
            {"value": highest(scope("cache_config_info"), labels)},
            "Configuration as vLLM exports it, per engine: generation, tokens per block, blocks, KV dtype,"
            " prefix caching, share of GPU memory. Empty: vLLM does not export it.",
            size=(8, 7),
            columns=(Column("engine", "engine"), *(Column(name, title) for name, title in _CONFIG.items())),
        ),
    )


def prefix(scope: QueryScope) -> PanelRow:
    hits = scope.rate("prefix_cache_hit_tokens_total")
    lookups = scope.rate("prefix_cache_queried_tokens_total")
    external_hits = scope.rate("external_prefix_cache_hit_tokens_total")
    external_lookups = scope.rate("external_prefix_cache_queried_tokens_total")
    return PanelRow(
        "Does the prefix cache help?",
        (
            ratio_panel(
                "Prefix cache hit rate",
                {
                    "local cache": scope.hit_ratio(),
                    "external cache": f"{total(external_hits)}\n/\n{total(external_lookups)}",
                    "reused prompt tokens (5 min)": f"min({scope('prompt_tokens_reused_ratio')})",
                    "since the start (v0)": f"min({scope('prefix_cache_lifetime_hit_ratio')})",
                },
                "Tokens found / tokens looked up. If prompts share little text, a low rate is normal. Up to"
                " vLLM 0.26, every attempt to schedule a request counts as a look-up:"
                " check the next panel first. If prompts are long, investigate values below"
                f" {threshold_text('prefix_cache_ineffective.hit_ratio')}.",
                steps=(
                    ThresholdStep(0, LOOK),
                    ThresholdStep(LIMITS["prefix_cache_ineffective.hit_ratio"], GOOD),
                ),
                colours={"local cache": BLUE, "external cache": ORANGE, "reused prompt tokens (5 min)": SKY},
            ),
            stat(
                "Can the hit rate be trusted?",
                {"least trusted engine": f"min({scope('prefix_cache_hit_ratio_trusted')})"},
                "No: more tokens were looked up than prompts have, or preempted requests found their own"
                " blocks. kvwatch then shows the hit rate, but does not judge by it.",
                size=(4, 7),
                words={"0": ("No", ACT), "1": ("Yes", GOOD)},
                absent="No look-ups in 5 min",
            ),
            graph(
                "Tokens looked up and found",
                {"looked up /s": total(lookups), "found /s": total(hits)},
                "Prompt tokens per second looked up in the prefix cache, and found there. No line: prefix"
                " caching is off.",
                unit="short",
                size=(6, 7),
                colours={"looked up /s": ORANGE, "found /s": BLUE},
            ),
            stacked(
                "Prompt tokens by source",
                {"{{source}}": total(scope.rate("prompt_tokens_by_source_total"), "source")},
                "Prompt tokens per second by the source of their KV: computed, found in the local cache, or"
                " transferred. The fewer are computed, the shorter the time to first token.",
                unit="short",
                size=(6, 7),
            ),
            graph(
                "External cache",
                {"looked up /s": total(external_lookups), "found /s": total(external_hits)},
                "Tokens per second looked up, and found, in a cache outside the GPU (a KV connector). Since"
                " vLLM 0.16, only tokens that the local cache does not hold are looked up there.",
                unit="short",
                size=(12, 6),
                colours={"looked up /s": ORANGE, "found /s": BLUE},
                absent="Not exposed: this vLLM has no KV connector",
            ),
            graph(
                "KV offloading",
                {
                    "stored": total(scope.rate("kv_offload_stored_bytes_total")),
                    "loaded": total(scope.rate("kv_offload_loaded_bytes_total")),
                },
                "Bytes of KV cache per second written to host memory or another tier, and read back. If much is"
                " stored and nothing loaded, offloading does not help.",
                unit="Bps",
                size=(12, 6),
                absent="Not exposed: this vLLM does not offload KV",
            ),
        ),
    )
