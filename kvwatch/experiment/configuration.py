"""What a server was run with, as far as it shows: what changed between two runs, and what only followed from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.state import State
from kvwatch.experiment.series import ENGINE_SECONDS, RunSeries, in_regime
from kvwatch.text.numbers import format_number

CEILING, _OR_MORE = "max_num_seqs", " or more"
#: What vLLM works out of its options: the name it is shown by, and what people call it.
FOLLOWS: Mapping[str, str] = {
    "num_gpu_blocks": "KV cache blocks",
    "kv_cache_tokens": "KV cache capacity, tokens",
    "kv_cache_max_concurrency": "longest requests that fit at once",
    "effective_attention_block_size": "effective block size",
}
#: What changes from run to run by itself, or says again what another name does.
_PASSED_OVER = frozenset(
    {"_block_size_resolved", "swap_space_bytes", "cpu_kvcache_space_bytes", "kv_cache_size_tokens"}
)
_SHOWN_AS: Mapping[str, str] = {
    "cache_dtype": "--kv-cache-dtype",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "enable_prefix_caching": "--enable-prefix-caching",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    CEILING: "--max-num-seqs, as seen",
    "version": "vLLM version",
    "model": "model",
    "engines": "engines",
}
_HELD_BACK_S = 10.0
"""Seconds in which requests must have waited for a slot before the most that ran is taken for the ceiling."""
_PROFILED = 0.02
NOTHING = "not shown"
"""What stands for an option that a server does not show; only what both show can be told to differ."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two runs have different. `follows` says that vLLM works it out of its options."""

    name: str
    title: str
    baseline: str
    candidate: str
    follows: bool


def configuration_of(state: State, series: RunSeries, peaks: Mapping[str, float]) -> dict[str, str]:
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
        found |= {
            name: _short(said) if name in FOLLOWS else said
            for name, said in config.labels
            if said != "None" and name not in _PASSED_OVER
        }
        length = config.max_model_len
        capacity, _ = capacity_tokens(engine.snapshot)
        if length is not None:
            found["max_model_len"] = format_number(length)
        if capacity is not None:
            found["kv_cache_tokens"] = format_number(capacity)
    if facts is not None and facts.max_model_len:
        lengths = {facts.max_model_len[name] for name in models if name in facts.max_model_len}
        if lengths:
            found["max_model_len"] = ", ".join(format_number(length) for length in sorted(lengths))
    if len(engines) == 1 and "requests_running" in peaks:
        found[CEILING] = _ceiling(series, peaks["requests_running"])
    return found


def _short(said: str) -> str:
    """A number that vLLM worked out, with the digits that matter."""
    try:
        return format_number(float(said))
    except ValueError:
        return said


def _ceiling(series: RunSeries, most: float) -> str:
    """How many requests may run at once: the most that did, where others waited for a slot; else so many or more."""
    held_back = sum(series.columns.get(in_regime(Regime.SEQUENCE_LIMITED), ()))
    whole = sum(series.columns.get(ENGINE_SECONDS, ()))
    reached = held_back >= max(_HELD_BACK_S, 0.05 * whole)
    return f"{most:.0f}" + ("" if reached else _OR_MORE)


def changes(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> list[Change]:
    """What differs, options before what follows from them."""
    return sorted(_changes(baseline, candidate), key=lambda change: change.follows)


def _changes(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*_SHOWN_AS, *baseline, *candidate)):
        before, after = baseline.get(name, NOTHING), candidate.get(name, NOTHING)
        if before == after or NOTHING in {before, after}:
            continue
        if name == CEILING and not _ceilings_differ(before, after):
            continue
        if name in FOLLOWS and _near(before, after):
            continue
        title = FOLLOWS.get(name) or _SHOWN_AS.get(name, name)
        yield Change(name, title, before, after, name in FOLLOWS)


def _near(before: str, after: str) -> bool:
    """Whether two numbers differ by no more than what profiling the memory finds otherwise from start to start."""
    try:
        first, second = (float(said.replace(",", "")) for said in (before, after))
    except ValueError:
        return False
    return abs(first - second) <= _PROFILED * max(abs(first), abs(second))


def _ceilings_differ(before: str, after: str) -> bool:
    """Whether two ceilings can't be one: of those that were not reached only what is below them is known."""
    (first, first_open), (second, second_open) = (
        (float(said.removesuffix(_OR_MORE)), said.endswith(_OR_MORE)) for said in (before, after)
    )
    if first_open and second_open:
        return False
    if first_open or second_open:
        return first > second if first_open else second > first
    return first != second


def options_changed(found: list[Change]) -> int:
    """How many options changed. What follows counts as one if nothing shows that it follows from."""
    named = sum(not change.follows for change in found)
    return named or int(bool(found))
