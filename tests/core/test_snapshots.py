"""Recorded pages of each vLLM release, normalised, against committed results.

The expected file stands beside its recording: the first page whole, of the later ones what changed. With
`KVWATCH_REGENERATE=1` they are written anew and the run fails.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.export import report
from kvwatch.core.exposition.normalise import NormalisedPage, PageNormaliser
from tests.support.expected import matches, number
from tests.support.pages import CAPTURES, RealPage, polls, real_pages

RECORDINGS = sorted(CAPTURES.glob("vllm-*/*.jsonl.gz"))


def flat(page: NormalisedPage) -> dict[str, Any]:
    """A page as plain data, by engine."""
    found: dict[str, Any] = {"server": numbers(report.signals(page.server))}
    if page.unknown_families:
        found["unknown"] = list(page.unknown_families)
    for key, snapshot in page.engines.items():
        found[f"{key.model_name}/{key.engine}"] = {
            "generation": snapshot.generation,
            "features": sorted(snapshot.features),
            "config": {
                name: number(value) if isinstance(value, float) else value
                for name, value in report.config(snapshot.config).items()
                if value is not None
            },
            "missing": sorted(snapshot.missing),
            "caveats": sorted(snapshot.caveats),
            "signals": numbers(report.signals(snapshot)),
        }
    return found


def numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: number(value) for name, value in values.items()}


def changed(before: Any, after: Any) -> Any:
    """What of `after` is not as in `before`; what is gone is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*after, *(key for key in before if key not in after)]
        return {
            key: changed(before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
        }
    return after


@pytest.mark.parametrize(
    "path", RECORDINGS, ids=lambda p: f"{p.parent.name}/{p.name.removesuffix('.jsonl.gz')}"
)
def test_a_recorded_page_gives_the_expected_snapshot(path: Path) -> None:
    """Signals, missing names, configuration and generation of every page are as committed."""
    interpreter = PageNormaliser(Vocabulary(), "t")
    found: list[Any] = []
    before: Any = {}
    for poll in polls(path):
        if poll["status"] != 200:
            found.append({"status": poll["status"]})
            continue
        openmetrics = "openmetrics" in poll.get("content_type", "")
        now = flat(interpreter.read(poll["body"].encode(), openmetrics=openmetrics))
        found.append(changed(before, now))
        before = now
    matches(path.with_name(path.name.replace(".jsonl.gz", ".expected.json")), found)


# -- the same, read by other means: a few patterns, a list of names written by hand ------------------------------

#: Signal -> vLLM's names for it, the one to read first.
RAW: dict[str, tuple[str, ...]] = {
    "kv_cache_usage_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "requests_running": ("num_requests_running",),
    "requests_waiting": ("num_requests_waiting",),
    "preemptions_total": ("num_preemptions_total",),
    "prompt_tokens_total": ("prompt_tokens_total",),
    "generation_tokens_total": ("generation_tokens_total",),
    "prefix_cache_queried_tokens_total": ("prefix_cache_queries_total",),
    "prefix_cache_hit_tokens_total": ("prefix_cache_hits_total",),
    "prefix_cache_lifetime_hit_ratio": ("gpu_prefix_cache_hit_rate",),
    "requests_swapped": ("num_requests_swapped",),
    "time_to_first_token_seconds_sum": ("time_to_first_token_seconds_sum",),
    "time_to_first_token_seconds_count": ("time_to_first_token_seconds_count",),
    "inter_token_latency_seconds_sum": (
        "inter_token_latency_seconds_sum",
        "time_per_output_token_seconds_sum",
    ),
    "request_queue_time_seconds_sum": ("request_queue_time_seconds_sum",),
    "request_prompt_tokens_sum": ("request_prompt_tokens_sum",),
    "iteration_tokens_count": ("iteration_tokens_total_count",),
    'requests_finished_total{reason="length"}': ('request_success_total|finished_reason="length"',),
    'requests_waiting_by_reason{reason="deferred"}': ('num_requests_waiting_by_reason|reason="deferred"',),
    'prompt_tokens_by_source_total{source="local_cache_hit"}': (
        'prompt_tokens_by_source_total|source="local_cache_hit"',
    ),
}


def raw(text: str, engine: str, names: tuple[str, ...]) -> float | None:
    """The value behind the first of the names that the page has for an engine."""
    for name in names:
        bare, _, label = name.partition("|")
        for line in re.findall(rf"^vllm[:_]{bare}(?:\{{.*\}})? \S+$", text, re.MULTILINE):
            if label in line and ("engine=" not in line or f'engine="{engine}"' in line):
                return float(line.rsplit(" ", 1)[1])
    return None


def label(text: str, name: str) -> str:
    found = re.search(rf'vllm[:_]cache_config_info\{{[^\n]*\b{name}="([^"]*)"', text)
    return found.group(1) if found else ""


@pytest.mark.parametrize("folder", sorted({page.folder for page in real_pages()}))
def test_signals_are_what_the_page_says(folder: str) -> None:
    """Each number read is the one that stands in the raw text behind its name."""
    checked = 0
    for page in real_pages():
        if page.folder == folder:
            checked += agree(page)
    assert checked > 30


def agree(page: RealPage) -> int:
    text = page.body.decode()
    read = PageNormaliser(Vocabulary(), "t").read(page.body)
    for key, snapshot in read.engines.items():
        found = report.signals(snapshot)
        for signal, names in RAW.items():
            assert found.get(signal) == raw(text, key.engine, names), (page.place, signal)
        assert f'model_name="{key.model_name}"' in text
        assert ("engine=" in text) == (snapshot.generation == "v1"), page.place
        assert snapshot.config.block_size == float(label(text, "block_size")), page.place
        assert snapshot.config.num_gpu_blocks == float(label(text, "num_gpu_blocks")) / len(read.engines)
        assert str(snapshot.config.enable_prefix_caching) == label(text, "enable_prefix_caching")
        tokens = label(text, "kv_cache_size_tokens")
        assert snapshot.config.kv_cache_size_tokens == (float(tokens) if tokens else None)
    return len(read.engines) * len(RAW)
