"""Turns the samples of a page into one Snapshot per engine.

Theory of operation
    From scrape to scrape only the numbers change. Which series belong to which engine, which alias of a signal to
    read, what the cache configuration says and what is missing all stay the same. So a page is normalised in two
    steps: a `SeriesMap` (`series_map.py`) is built from the series alone and kept while they stay the same; applying
    it picks numbers out of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.dialect.vllm import Vocabulary
from kvwatch.core.exposition.parser import Exposition, PageReader
from kvwatch.core.exposition.series_map import SeriesMap, SeriesMapper, SignalSources
from kvwatch.core.model.signals import BY_NAME, CORE, SignalKind
from kvwatch.core.model.snapshot import NOT_YET, EngineKey, Histogram, Snapshot, Value

_MAX_MAPS, _MAX_MAPPED_SERIES = 4, 100_000
"""Limits of the kept maps: their number, and their series in total."""
_SPECULATIVE = "speculative decoding is on: this is the time between outputs of several tokens each"


@dataclass(frozen=True, slots=True)
class NormalisedPage:
    """A normalised page.

    `server` holds the signals of the whole target. `unknown_families` are vLLM families that kvwatch does not know,
    such as a new name in a new release. `exposed` are the sample names that were read. `configured`: a cache
    configuration is exposed, which is so even on an idle server. `left_out` counts series beyond the limits
    (`kvwatch.core.exposition.series_map`).
    """

    engines: Mapping[EngineKey, Snapshot]
    server: Snapshot
    unknown_families: tuple[str, ...]
    exposed: tuple[str, ...]
    configured: bool
    left_out: int = 0


class PageNormaliser:
    """Reads the pages of one target. Keeps series and maps as a cache, which never changes a result."""

    def __init__(self, vocabulary: Vocabulary, target: str) -> None:
        self.vocabulary = vocabulary
        self.target = target
        self._reader = PageReader(lambda name: vocabulary.role(name) is not None, vocabulary.begins)
        self._maps: list[SeriesMap] = []

    def read(self, body: bytes, *, openmetrics: bool = False) -> NormalisedPage:
        """Normalises a page. Raises `kvwatch.core.exposition.parser.ExpositionError`."""
        page = self._reader.read(body, openmetrics=openmetrics)
        return self._apply(self._map_of(page), page.values)

    def _map_of(self, page: Exposition) -> SeriesMap:
        for known in () if page.conflicts else self._maps:
            if known.series == page.series and known.help == page.help and known.families == page.families:
                return known
        new = SeriesMapper(self.vocabulary, page).build()
        if not page.conflicts:
            self._keep(new)
        return new

    def _keep(self, new: SeriesMap) -> None:
        """Keeps a new map and, within the limits, the latest ones before it."""
        series, kept = new.weight, [new]
        for old in self._maps[: _MAX_MAPS - 1]:
            series += old.weight
            if series <= _MAX_MAPPED_SERIES:
                kept.append(old)
        self._maps = kept

    def _apply(self, series_map: SeriesMap, values: Sequence[float]) -> NormalisedPage:
        engines = {}
        for (model, engine), one in series_map.engines.items():
            key = EngineKey(self.target, model, engine)
            found, missing, caveats = _read(one.sources, values)
            served = _has_served(found)
            if not served:
                self._explain_late_gauges(missing, one.sources)
            if found.get("spec_decode_draft_tokens_total"):
                caveats["inter_token_latency_seconds"] = _SPECULATIVE
            engines[key] = Snapshot(
                key, found, missing, caveats, one.config, one.generation, one.features, served
            )
        return NormalisedPage(
            engines,
            Snapshot(EngineKey(self.target), *_read(series_map.server, values)),
            series_map.unknown,
            series_map.exposed,
            series_map.configured,
            series_map.left_out,
        )

    def _explain_late_gauges(self, missing: dict[str, str], sources: SignalSources) -> None:
        """Some releases expose no gauges before the first request; that is no fault."""
        for name in CORE:
            if name in sources.absent:
                names = ", ".join(self.vocabulary.names_of(name))
                missing[name] = f"{NOT_YET}: vLLM exposes it from the first request on (looked for {names})"


def _read(
    sources: SignalSources, values: Sequence[float]
) -> tuple[dict[str, Value], dict[str, str], dict[str, str]]:
    """Values, reasons for missing ones, and caveats, by signal."""
    found: dict[str, Value] = {}
    missing = dict(sources.absent)
    caveats: dict[str, str] = {}
    for signal, candidates in sources.present:
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


def _has_served(found: Mapping[str, Value]) -> bool:
    """Whether any counter shows that this engine served a request."""
    return any(
        value > 0 if isinstance(value, float) else isinstance(value, Histogram) and value.count > 0
        for name, value in found.items()
        if BY_NAME[name].kind is not SignalKind.GAUGE
    )
