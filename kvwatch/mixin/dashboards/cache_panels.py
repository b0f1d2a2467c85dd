"""A server's KV cache: how full it is, how much it holds, whether prefixes are found in it."""

from __future__ import annotations

from kvwatch.mixin.dashboards.colours import ACT, BLUE, GOOD, LOOK, ORANGE, SKY, VERMILLION, YELLOW
from kvwatch.mixin.dashboards.common import about, step
from kvwatch.mixin.dashboards.elements import Column, Panel, PanelKind, PanelRow, Query, ThresholdStep
from kvwatch.mixin.dashboards.queries import ENGINE, QueryScope, highest, ratio, total, usage_share

_CONFIG = (
    ("generation", "vLLM"),
    ("block_size", "block"),
    ("num_gpu_blocks", "blocks"),
    ("cache_dtype", "dtype"),
    ("enable_prefix_caching", "prefixes"),
    ("gpu_memory_utilization", "memory"),
)
_NO_CONNECTOR = "Not exposed: this vLLM has no KV connector"


def full(scope: QueryScope) -> PanelRow:
    return PanelRow("Is the cache full?", (*_usage(scope), *_capacity(scope)))


def _usage(scope: QueryScope) -> tuple[Panel, ...]:
    return (
        Panel(
            "KV usage and its peaks",
            PanelKind.LINES,
            "percentunit",
            (
                Query(highest(scope("kv_cache_usage_peak_1m_ratio")), "peak of a minute"),
                Query(highest(scope("kv_cache_usage_ratio")), "at the scrape"),
            ),
            "Share of the blocks that live requests hold, in the fullest engine. The peak counts every scrape"
            " of kvwatch, the other line only the moments at which Prometheus looked. From"
            f" {about('regime.full_usage')} on the cache counts as full.",
            width=9,
            steps=(step("regime.full_usage", LOOK),),
            colours={"peak of a minute": ORANGE, "at the scrape": BLUE},
            high=1,
        ),
        Panel(
            "How much of the time was it nearly full?",
            PanelKind.LINES,
            "percentunit",
            (Query(usage_share(scope), "usage ≥ {{threshold}}"),),
            "Share of the time in which usage was at or above each mark, over all engines that answered. Near"
            " 100 % with nothing waiting: it fits, barely. With a queue: the cache is the limit.",
            width=7,
            colours={"usage ≥ 0.9": YELLOW, "usage ≥ 0.95": ORANGE, "usage ≥ 0.99": VERMILLION},
            high=1,
        ),
        Panel(
            "Usage, scrape by scrape",
            PanelKind.HEATMAP,
            "percentunit",
            (Query(total(scope.increase("kv_cache_usage_sampled_ratio_bucket"), "le"), "{{le}}"),),
            "How often each level of KV usage was seen; each scrape of kvwatch is one observation. A band at"
            " the top is a cache that stays full; a sawtooth is one that empties at each preemption.",
            width=8,
        ),
    )


def _capacity(scope: QueryScope) -> tuple[Panel, ...]:
    held = f"{scope('kv_cache_usage_ratio')} * {scope('kv_cache_capacity_tokens')}"
    unknown = "Not exposed: no size in tokens is known of this cache"
    return (
        Panel(
            "Demand on the cache",
            PanelKind.LINES,
            "none",
            (Query(highest(scope("kv_cache_demand_ratio"), ENGINE), "{{target}} {{engine}}"),),
            "Usage × (running + waiting) / running, over a minute: the share of the cache that all who run"
            " and wait would need. 1 is exactly full, 2 needs twice the cache, or half the length. It grows"
            " with the load, so it is fit to scale by. Waiting is put down to the cache from"
            f" {about('regime.demand')}.",
            width=7,
            steps=(step("regime.demand"),),
            decimals=1,
        ),
        Panel(
            "Tokens held and room for them",
            PanelKind.LINES,
            "short",
            (Query(total(scope("kv_cache_capacity_tokens")), "capacity"), Query(total(held), "held")),
            "Tokens in the cache that live requests hold, and how many it holds at most, over all chosen"
            " engines. What lies between is free or holds cached prefixes.",
            width=6,
            colours={"capacity": ORANGE, "held": BLUE},
            absent=unknown,
        ),
        Panel(
            "Capacity",
            PanelKind.STAT,
            "locale",
            (Query(total(scope("kv_cache_capacity_tokens")), "tokens"),),
            "Tokens that the KV cache holds over all chosen engines. More: --gpu-memory-utilization,"
            " --kv-cache-dtype fp8 (after checking quality), more GPUs.",
            width=3,
            base=SKY,
            absent=unknown,
        ),
        Panel(
            "How is it configured?",
            PanelKind.TABLE,
            "none",
            (
                Query(
                    highest(scope("cache_config_info"), f"{ENGINE}, {', '.join(n for n, _ in _CONFIG)}"), "is"
                ),
            ),
            "vLLM's own words on its cache, per engine: generation, tokens per block, blocks, precision of"
            " the KV, prefix caching, share of the GPU's memory. Empty is what it does not say.",
            width=8,
            columns=tuple(Column(name, title) for name, title in (("engine", "engine"), *_CONFIG)),
        ),
    )


def prefix(scope: QueryScope) -> PanelRow:
    hit, asked = scope.rate("prefix_cache_hit_tokens_total"), scope.rate("prefix_cache_queried_tokens_total")
    outside = scope.rate("external_prefix_cache_hit_tokens_total")
    outside_asked = scope.rate("external_prefix_cache_queried_tokens_total")
    computed = scope.rate("prompt_tokens_by_source_total")
    return PanelRow(
        "Does the prefix cache help?",
        (
            Panel(
                "Hit ratio",
                PanelKind.LINES,
                "percentunit",
                (
                    Query(ratio(hit, asked), "local cache"),
                    Query(ratio(outside, outside_asked), "external cache"),
                    Query(f"min({scope('prompt_tokens_reused_ratio')})", "reused prompt tokens (5 min)"),
                    Query(f"min({scope('prefix_cache_lifetime_hit_ratio')})", "since the start (v0)"),
                ),
                "Tokens found in the cache / tokens looked up. Not compared with a target here: what can be"
                " found depends on what prompts share. Under pressure, up to vLLM 0.26, look-ups are counted"
                " again at every attempt, so look at the stat beside it before believing it. With long"
                f" prompts, less than {about('prefix_cache_ineffective.hit_ratio')} is worth a look.",
                steps=(
                    ThresholdStep(0, LOOK),
                    ThresholdStep(step("prefix_cache_ineffective.hit_ratio").value, GOOD),
                ),
                colours={"local cache": BLUE, "external cache": ORANGE, "reused prompt tokens (5 min)": SKY},
                high=1,
            ),
            Panel(
                "Can the ratio be trusted?",
                PanelKind.STAT,
                "none",
                (Query(f"min({scope('prefix_cache_hit_ratio_trusted')})", "least trusted engine"),),
                "No: look-ups ran ahead of prompt tokens, or preempted requests found their own blocks."
                " kvwatch then shows the ratio and judges nothing by it.",
                width=4,
                words={"0": ("No", ACT), "1": ("Yes", GOOD)},
                absent="No look-ups in 5 min",
            ),
            Panel(
                "Tokens looked up and found",
                PanelKind.LINES,
                "short",
                (Query(total(asked), "looked up /s"), Query(total(hit), "found /s")),
                "Prompt tokens per second that were looked for in the prefix cache, and those found there. No"
                " line where prefix caching is off.",
                width=6,
                colours={"looked up /s": ORANGE, "found /s": BLUE},
            ),
            Panel(
                "Where do prompt tokens come from?",
                PanelKind.STACK,
                "short",
                (Query(total(computed, "source"), "{{source}}"),),
                "Prompt tokens per second by where their KV came from: computed, found in the local cache, or"
                " fetched. Less computing is a shorter time to the first token.",
                width=6,
            ),
            Panel(
                "External cache",
                PanelKind.LINES,
                "short",
                (Query(total(outside_asked), "looked up /s"), Query(total(outside), "found /s")),
                "Tokens per second looked for in, and found in, a cache outside the GPU (a KV connector)."
                " Since vLLM 0.16 only what the local cache did not hold is looked up there.",
                width=12,
                height=6,
                colours={"looked up /s": ORANGE, "found /s": BLUE},
                absent=_NO_CONNECTOR,
            ),
            Panel(
                "Offloaded KV",
                PanelKind.LINES,
                "Bps",
                (
                    Query(total(scope.rate("kv_offload_stored_bytes_total")), "stored"),
                    Query(total(scope.rate("kv_offload_loaded_bytes_total")), "loaded"),
                ),
                "Bytes of KV per second written to host memory or beyond, and read back. Much stored and"
                " nothing loaded is work for nothing.",
                width=12,
                height=6,
                absent="Not exposed: this vLLM does not offload KV",
            ),
        ),
    )
