"""Samples of a page to one Snapshot per engine.

Theory of operation
    Everything but the numbers is the same from scrape to scrape: which series belong to which engine, which
    alias of a signal is the best one exposed, what the cache configuration says, what is missing and why.
    So a page is normalised in two steps. A `Plan` (`plan.py`) is worked out from the series alone and kept as
    long as they stay the same; applying it picks numbers out of a list. A changed page makes a new plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.parser import Exposition, PageReader
from kvwatch.core.exposition.series_map import SeriesMap, SeriesMapper, SignalSources
from kvwatch.core.model.signals import BY_NAME, CORE, SignalKind
from kvwatch.core.model.snapshot import NOT_YET, EngineKey, Histogram, Snapshot, Value


@dataclass(frozen=True, slots=True)
class NormalisedPage:
    """A normalised page.

    `engines` by key; `server` has what concerns the whole target. `unknown_families` are vLLM's families that
    kvwatch has never heard of: tomorrow's rename. `exposed` are the sample names that were read.
    `configured` says that a cache configuration was there, which even an idle server shows. `left_out` is how many
    series are not read because they are beyond the limits (`kvwatch.core.exposition.series_map`).
    """

    engines: Mapping[EngineKey, Snapshot]
    server: Snapshot
    unknown_families: tuple[str, ...]
    exposed: tuple[str, ...]
    configured: bool
    left_out: int = 0


_PLANS, _MOST_HELD = 4, 100_000
"""How many plans are remembered, of as many series in all."""
_SPECULATIVE = "speculative decoding is on: an output is several tokens, so this is the time between outputs"


class PageNormaliser:
    """Reads the pages of one target: bytes to `Page`. Remembers series and plans, which hardly change.

    A cache of a pure function: what it read before never changes what it says.
    """

    def __init__(self, vocabulary: Vocabulary, target: str) -> None:
        self.vocabulary = vocabulary
        self.target = target
        self._reader = PageReader(lambda name: vocabulary.role(name) is not None, vocabulary.begins)
        self._plans: list[SeriesMap] = []

    def read(self, body: bytes, *, openmetrics: bool = False) -> NormalisedPage:
        """Normalises a page; raises `kvwatch.core.exposition.parser.BadExposition`."""
        page = self._reader.read(body, openmetrics=openmetrics)
        return self._apply(self._plan(page), page.values)

    def _plan(self, page: Exposition) -> SeriesMap:
        for plan in () if page.conflicts else self._plans:
            if plan.series == page.series and plan.help == page.help and plan.families == page.families:
                return plan
        plan = SeriesMapper(self.vocabulary, page).plan()
        if not page.conflicts:
            self._keep(plan)
        return plan

    def _keep(self, plan: SeriesMap) -> None:
        """Remembers a plan, and as many of the last ones as weigh little."""
        held, kept = plan.weight, [plan]
        for one in self._plans[: _PLANS - 1]:
            held += one.weight
            if held <= _MOST_HELD:
                kept.append(one)
        self._plans = kept

    def _apply(self, plan: SeriesMap, values: Sequence[float]) -> NormalisedPage:
        engines = {}
        for (model, engine), one in plan.engines.items():
            key = EngineKey(self.target, model, engine)
            found, missing, caveats = _read(one.reads, values)
            served = _served(found)
            if not served:
                self._not_yet(missing, one.reads)
            if found.get("spec_decode_draft_tokens_total"):
                caveats["inter_token_latency_seconds"] = _SPECULATIVE
            engines[key] = Snapshot(
                key, found, missing, caveats, one.config, one.generation, one.features, served
            )
        server = Snapshot(EngineKey(self.target), *_read(plan.server, values))
        return NormalisedPage(engines, server, plan.unknown, plan.exposed, plan.configured, plan.left_out)

    def _not_yet(self, missing: dict[str, str], reads: SignalSources) -> None:
        """Before the first request some releases show no gauges: that is no fault of theirs."""
        for name in CORE:
            if name in reads.absent:
                names = ", ".join(self.vocabulary.names_of(name))
                missing[name] = f"{NOT_YET}: it comes with the first request served (looked for {names})"


def _read(
    reads: SignalSources, values: Sequence[float]
) -> tuple[dict[str, Value], dict[str, str], dict[str, str]]:
    """Values, reasons of missing ones, and caveats, by signal."""
    found: dict[str, Value] = {}
    missing = dict(reads.absent)
    caveats: dict[str, str] = {}
    for signal, candidates in reads.present:
        reason = ""
        for candidate, scale in candidates:
            value = candidate.read(values, signal, scale) if isinstance(scale, float) else scale
            if not isinstance(value, str):
                found[signal.name] = value
                if candidate.alias.caveat:
                    caveats[signal.name] = candidate.alias.caveat
                break
            reason = reason or value
        else:
            missing[signal.name] = reason
    return found, missing, caveats


def _served(found: Mapping[str, Value]) -> bool:
    """Whether any counter shows that this engine ever did anything."""
    return any(
        value > 0 if isinstance(value, float) else isinstance(value, Histogram) and value.count > 0
        for name, value in found.items()
        if BY_NAME[name].kind is not SignalKind.GAUGE
    )
