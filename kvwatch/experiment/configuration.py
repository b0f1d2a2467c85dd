"""What a server was run with, as far as it shows: what changed between two runs, and what only followed from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvwatch.core.derive import capacity_tokens
from kvwatch.core.regimes import Regime
from kvwatch.core.report import number
from kvwatch.core.state import State
from kvwatch.experiment.series import ENGINE_SECONDS, Series, in_regime

#: What vLLM works out of its options: the name it is shown by, and what people call it.
FOLLOWS: Mapping[str, str] = {
    "num_gpu_blocks": "KV cache blocks",
    "kv_cache_tokens": "KV cache capacity, tokens",
    "kv_cache_max_concurrency": "longest requests that fit at once",
    "kv_cache_size_tokens": "KV cache size, tokens",
    "effective_attention_block_size": "effective block size",
}
#: What changes from run to run by itself, or says again what another name does.
_PASSED_OVER = frozenset({"_block_size_resolved", "swap_space_bytes", "cpu_kvcache_space_bytes"})
_SHOWN_AS: Mapping[str, str] = {
    "cache_dtype": "--kv-cache-dtype",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "enable_prefix_caching": "--enable-prefix-caching",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs (seen)",
    "version": "vLLM version",
    "model": "model",
    "engines": "engines",
}
_HELD_BACK_S = 10.0
"""Seconds in which requests must have waited for a slot before the most that ran is taken for the ceiling."""
#: Only what both runs show can be told to differ, but these, of which absence says something.
NOTHING = "not shown"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two runs have different. `follows` says that vLLM works it out of its options."""

    name: str
    title: str
    baseline: str
    candidate: str
    follows: bool


def configuration_of(state: State, series: Series, peaks: Mapping[str, float]) -> dict[str, str]:
    """What the newest page and the other endpoints say of a server, in words, by name."""
    found: dict[str, str] = {}
    engines = list(state.engines.values())
    facts = state.facts
    if facts is not None and facts.version:
        found["version"] = facts.version
    models = sorted({key.model_name for key in state.engines if key.model_name})
    if models:
        found["model"] = ", ".join(models)
    found["engines"] = str(len(engines))
    for engine in engines[:1]:
        config = engine.snapshot.config
        found |= {name: said for name, said in config.labels if said != "None" and name not in _PASSED_OVER}
        length = config.max_model_len
        capacity, _ = capacity_tokens(engine.snapshot)
        if length is not None:
            found["max_model_len"] = number(length)
        if capacity is not None:
            found["kv_cache_tokens"] = number(capacity)
    if facts is not None and facts.max_model_len:
        lengths = {facts.max_model_len[name] for name in models if name in facts.max_model_len}
        if lengths:
            found["max_model_len"] = ", ".join(number(length) for length in sorted(lengths))
    ceiling = _ceiling(series, peaks, len(engines))
    if ceiling is not None:
        found["max_num_seqs"] = number(ceiling)
    return found


def _ceiling(series: Series, peaks: Mapping[str, float], engines: int) -> float | None:
    """The most requests that ran at once, where others waited for a slot; None where that was not so, and with
    several engines."""
    held_back = sum(series.columns.get(in_regime(Regime.SEQUENCE_LIMITED), ()))
    whole = sum(series.columns.get(ENGINE_SECONDS, ()))
    if engines != 1 or held_back < max(_HELD_BACK_S, 0.05 * whole):
        return None
    return peaks.get("requests_running")


def changes(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> list[Change]:
    """What differs, options before what follows from them."""
    return sorted(_changes(baseline, candidate), key=lambda change: change.follows)


def _changes(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*_SHOWN_AS, *baseline, *candidate)):
        before, after = baseline.get(name, NOTHING), candidate.get(name, NOTHING)
        if before == after or (NOTHING in {before, after} and name != "max_num_seqs"):
            continue
        title = FOLLOWS.get(name) or _SHOWN_AS.get(name, name)
        yield Change(name, title, before, after, name in FOLLOWS)


def options_changed(found: list[Change]) -> int:
    """How many options changed. What follows counts as one if nothing shows that it follows from."""
    named = sum(not change.follows for change in found)
    return named or int(bool(found))
