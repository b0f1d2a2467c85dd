"""The configuration of a server as its metrics show it, and what changed between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.state import State
from kvwatch.experiment.series import ENGINE_SECONDS, RunSeries, column
from kvwatch.text.numbers import format_number

_SLOTS, _OR_MORE = "max_num_seqs", " or more"
DERIVED: Mapping[str, str] = {
    "num_gpu_blocks": "KV cache blocks",
    "kv_cache_tokens": "KV cache capacity, tokens",
    "kv_cache_max_concurrency": "longest requests that fit at once",
    "effective_attention_block_size": "effective block size",
}
"""What vLLM computes from its options, with titles."""
_IGNORED = frozenset(
    {"_block_size_resolved", "swap_space_bytes", "cpu_kvcache_space_bytes", "kv_cache_size_tokens"}
)
"""What varies from run to run by itself, or repeats another name."""
_TITLES: Mapping[str, str] = {
    "cache_dtype": "--kv-cache-dtype",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "enable_prefix_caching": "--enable-prefix-caching",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    _SLOTS: "--max-num-seqs, as observed",
    "version": "vLLM version",
    "model": "model",
    "engines": "engines",
}
_LIMITED_S, _LIMITED_SHARE = 10.0, 0.05
"""Requests must wait this long, and this share of the run, for a slot before the peak counts as --max-num-seqs."""
_PROFILED = 0.02
"""Memory profiling at start-up varies by this share."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two configurations. `follows`: vLLM derives it from its options."""

    name: str
    title: str
    baseline: str
    candidate: str
    follows: bool


def configuration_of(state: State, series: RunSeries, peaks: Mapping[str, float]) -> dict[str, str]:
    """What the newest page and the other endpoints show of a server, as text by name."""
    found: dict[str, str] = {}
    engines, facts = list(state.engines.values()), state.facts
    if facts is not None and facts.version:
        found["version"] = facts.version
    models = sorted({key.model_name for key in state.engines if key.model_name})
    if models:
        found["model"] = ", ".join(models)
    found["engines"] = str(len(engines))
    for engine in engines[:1]:
        config = engine.snapshot.config
        found |= {
            name: _short(value) if name in DERIVED else value
            for name, value in config.labels
            if value != "None" and name not in _IGNORED
        }
        capacity, _ = capacity_tokens(engine.snapshot)
        numbers = {"max_model_len": config.max_model_len, "kv_cache_tokens": capacity}
        found |= {name: format_number(value) for name, value in numbers.items() if value is not None}
    known = (facts.max_model_len if facts else None) or {}
    lengths = {known[name] for name in models if name in known}
    if lengths:
        found["max_model_len"] = ", ".join(map(format_number, sorted(lengths)))
    if len(engines) == 1 and "requests_running" in peaks:
        found[_SLOTS] = _slots(series, peaks["requests_running"])
    return found


def _short(value: str) -> str:
    """A number with three digits; other text as it is."""
    try:
        return format_number(float(value))
    except ValueError:
        return value


def _slots(series: RunSeries, peak: float) -> str:
    """The number of slots: the peak of running requests if others waited for a slot, else the peak or more."""
    totals = series.totals()
    limited = totals.sum(column("regime", Regime.SEQUENCE_LIMITED))
    reached = limited >= max(_LIMITED_S, _LIMITED_SHARE * totals.sum(ENGINE_SECONDS))
    return f"{peak:.0f}" + ("" if reached else _OR_MORE)


def changes(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> list[Change]:
    """The differences, options before derived values. What only one of the servers shows is no difference."""
    found = [
        Change(
            name,
            DERIVED.get(name) or _TITLES.get(name, name),
            baseline[name],
            candidate[name],
            name in DERIVED,
        )
        for name in dict.fromkeys((*_TITLES, *baseline))
        if name in baseline and name in candidate and _differs(name, baseline[name], candidate[name])
    ]
    return sorted(found, key=lambda change: change.follows)


def _differs(name: str, before: str, after: str) -> bool:
    if name == _SLOTS:
        return _slots_differ(before, after)
    return before != after and not (name in DERIVED and _is_close(before, after))


def _is_close(before: str, after: str) -> bool:
    """Whether two numbers differ by no more than memory profiling varies."""
    try:
        first, second = (float(value.replace(",", "")) for value in (before, after))
    except ValueError:
        return False
    return abs(first - second) <= _PROFILED * max(abs(first), abs(second))


def _slots_differ(before: str, after: str) -> bool:
    """Whether two numbers of slots are certainly different: of "9 or more" only the lower bound is known."""
    first, second = (float(value.removesuffix(_OR_MORE)) for value in (before, after))
    if before.endswith(_OR_MORE):
        return first > second and not after.endswith(_OR_MORE)
    return second > first if after.endswith(_OR_MORE) else first != second


def options_changed(found: Sequence[Change]) -> int:
    """How many options changed. Derived changes alone count as one option that is not visible."""
    return sum(not change.follows for change in found) or int(bool(found))
