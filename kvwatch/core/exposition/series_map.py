"""Maps the series of a page to the signals of its engines: everything about a page except its numbers.

- Candidates of a signal are ordered by newest alias, preferred spelling, exact name. The first that gives one
  unambiguous value wins; candidates are never added up.
- A router's copies (label ``server``, no ``model_name``) are ignored.
- Replicas that a relay puts on one page (``ReplicaId``, ``WorkerId``) are separate engines.
- The cache configuration joins by engine, because it has no ``model_name``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvwatch.core.dialect.vllm import CONFIG_LABELS, FEATURES, RAY, Alias, Part, Role, Vocabulary
from kvwatch.core.exposition.parser import Exposition, SeriesKey
from kvwatch.core.exposition.series_candidate import SeriesCandidate, scale_of
from kvwatch.core.model.signals import SIGNALS, Signal, SignalKind, SignalScope
from kvwatch.core.model.snapshot import CacheConfig

_REPLICA_LABELS = ("ReplicaId", "WorkerId")
MAX_ENGINES = 256
"""A page beyond this or one of the following limits is broken or hostile: its further series are counted, not
read."""
_MAX_DIMENSION = 32
"""Label values of one signal."""
_MAX_BUCKETS = 200
_MAX_CONFIGS = 32
"""Series of one engine's cache configuration, which should all be equal."""
_MAX_NAME = 1000
"""Characters of a model, engine or label value: each appears in hundreds of exported series."""
_MAX_UNKNOWN, _MAX_FAMILY = 100, 200
"""Unknown families that are listed, and characters of each."""
_MAX_LABELS, _MAX_LABEL_VALUE = 100, 200
"""Labels of a cache configuration that are kept, and characters of each value."""
_IDENTITY_LABELS = frozenset({*_REPLICA_LABELS, "engine", "model_name", "pid", "server"})
"""Labels of a cache configuration that identify its engine."""

Order = tuple[int, int, bool]
"""Rank of the alias, rank of the spelling, and whether the name is inexact; the lowest comes first."""
Slots = Mapping[str, Mapping[Order, SeriesCandidate]]


@dataclass(slots=True)
class SignalSources:
    """How to read the signals of one engine or the server: the candidates of each signal on the page, with their
    scale or why it is unknown, and the reasons for signals that are not on the page."""

    present: list[tuple[Signal, list[tuple[SeriesCandidate, float | str]]]]
    absent: dict[str, str]


@dataclass(slots=True)
class EngineMap:
    """How to read one engine, and what its series show apart from numbers."""

    sources: SignalSources
    config: CacheConfig
    generation: str
    features: frozenset[str]


@dataclass(slots=True)
class SeriesMap:
    """How to read a page. Valid for every page with the same `series`, `help` and `families`."""

    series: list[SeriesKey]
    help: dict[str, str]
    engines: dict[tuple[str, str], EngineMap]
    server: SignalSources
    unknown: tuple[str, ...]
    families: tuple[str, ...]
    exposed: tuple[str, ...]
    configured: bool
    left_out: int
    """Series that are not read because they exceed a limit."""

    @property
    def weight(self) -> int:
        """Approximate memory, in series."""
        return len(self.series) + len(self.families)


class SeriesMapper:
    """Builds the map of a page."""

    def __init__(self, vocabulary: Vocabulary, page: Exposition) -> None:
        self.vocabulary = vocabulary
        self.page = page
        self.engines: dict[tuple[str, str], dict[str, dict[Order, SeriesCandidate]]] = {}
        self.server: dict[str, dict[Order, SeriesCandidate]] = {}
        self.configs: dict[tuple[str, str], list[dict[str, str]]] = {}
        """Labels of the cache configurations that are read, by replica and engine (empty without such a label)."""
        self.config_labels: dict[tuple[str, str], list[dict[str, str]]] = {}
        """All labels of the cache configurations, likewise."""
        self.with_engine_label: set[tuple[str, str]] = set()
        self.left_out = 0

    def build(self) -> SeriesMap:
        page = self.page
        for index, series in enumerate(page.series):
            role = self.vocabulary.role(series.name)
            if role is not None and not self._place(series, role, index):
                self.left_out += 1
        features = self._features(page.families)
        engines = {key: self._engine_map(key, found, features) for key, found in self.engines.items()}
        return SeriesMap(
            series=page.series,
            help=page.help,
            engines=engines,
            server=self._sources(SignalScope.TARGET, self.server, CacheConfig()),
            unknown=self._unknown(page.families),
            families=page.families,
            exposed=tuple(sorted({series.name for series in page.series})),
            configured=bool(self.configs),
            left_out=self.left_out,
        )

    def _engine_map(self, key: tuple[str, str], found: Slots, features: frozenset[str]) -> EngineMap:
        config = self._config(key[1])
        sources = self._sources(SignalScope.ENGINE, found, config)
        if not config.known:
            sources.absent["cache_config"] = why_absent(self.vocabulary, "cache_config")
        return EngineMap(sources, config, self._generation(key, found), features)

    def _sources(self, scope: SignalScope, slots: Slots, config: CacheConfig) -> SignalSources:
        sources = SignalSources([], {})
        for signal in SIGNALS:
            if signal.scope is not scope or signal.kind is SignalKind.INFO:
                continue
            ranked = slots.get(signal.name)
            if not ranked:
                sources.absent[signal.name] = why_absent(self.vocabulary, signal.name)
                continue
            found = [ranked[order] for order in sorted(ranked)]
            sources.present.append((signal, [(one, scale_of(one.alias, config)) for one in found]))
        return sources

    def _place(self, series: SeriesKey, role: Role, index: int) -> bool:
        """Adds a series to its candidate, if it has one; returns False if it exceeds a limit."""
        signal = role.signal
        labels = dict(series.labels)
        if "server" in labels and "model_name" not in labels:
            return True
        if signal.kind is SignalKind.INFO:
            return self._place_config(labels)
        rank, alias = self._ranked_alias(role, series.name)
        if any(labels.get(name) != value for name, value in alias.where):
            return True
        label = labels.get(alias.label) if signal.dimension else None
        if signal.dimension and (label is None or label in alias.excluded):
            return True
        slot = self.server if signal.scope is SignalScope.TARGET else self._slot(labels)
        if slot is None:
            return False
        order = (rank, role.spelling, not role.exact)
        candidate = slot.setdefault(signal.name, {}).setdefault(order, SeriesCandidate(alias))
        le = _le(labels.get("le")) if role.part is Part.BUCKET else None
        if label is not None and not _fits(label, candidate.by_label, _MAX_DIMENSION):
            return False
        if le is not None and le not in candidate.buckets and len(candidate.buckets) >= _MAX_BUCKETS:
            return False
        candidate.add(role.part, label, le, index)
        if series in self.page.conflicts:
            candidate.add(role.part, label, le, self._nan_index())
        return True

    def _slot(self, labels: Mapping[str, str]) -> dict[str, dict[Order, SeriesCandidate]] | None:
        """The candidates of an engine; None if it exceeds a limit."""
        key = (labels.get("model_name", ""), _engine(labels))
        if key not in self.engines and (len(self.engines) >= MAX_ENGINES or max(map(len, key)) > _MAX_NAME):
            return None
        if "engine" in labels:
            self.with_engine_label.add(key)
        return self.engines.setdefault(key, {})

    def _place_config(self, labels: Mapping[str, str]) -> bool:
        key = (_replica(labels), labels.get("engine", ""))
        found = {name: value for name in CONFIG_LABELS if (value := _text(labels.get(name))) is not None}
        if key not in self.configs and len(self.configs) >= MAX_ENGINES:
            return False
        configs = self.configs.setdefault(key, [])
        if len(configs) >= _MAX_CONFIGS or any(len(value) > _MAX_NAME for value in found.values()):
            return False
        configs.append(found)
        self.config_labels.setdefault(key, []).append(
            {name: value[:_MAX_LABEL_VALUE] for name, value in labels.items() if name not in _IDENTITY_LABELS}
        )
        return True

    def _nan_index(self) -> int:
        """The index of a value that differs from any other, which makes a series with two values ambiguous."""
        self.page.values.append(math.nan)
        return len(self.page.values) - 1

    def _ranked_alias(self, role: Role, name: str) -> tuple[int, Alias]:
        if len(role.aliases) > 1:
            text = self._help(role, name)
            for rank, alias in role.aliases:
                if not alias.help_has or alias.help_has in text:
                    return rank, alias
        return role.aliases[0]

    def _help(self, role: Role, name: str) -> str:
        """A sample's HELP text. Its family may lack the ``_total``, or have a colon that the sample lost."""
        bare = name.removeprefix(self.vocabulary.spellings[role.spelling]).removesuffix("_total")
        families = (spelling + bare + end for spelling in self.vocabulary.spellings for end in ("", "_total"))
        return next((self.page.help[family] for family in families if family in self.page.help), "")

    def _config(self, engine: str) -> CacheConfig:
        rank, _, replica = engine.partition("/")
        keys = ((replica, rank), (replica, ""), ("", rank), ("", ""))
        key = next((key for key in keys if key in self.configs), None)
        if key is None:
            return CacheConfig()
        found = _common(self.configs[key])
        # Under internal data parallelism every engine's series has the sum over all engines.
        sharing = sum(
            1
            for (replica_of, _), other in self.configs.items()
            if replica_of == key[0] and _common(other) == found
        )
        blocks = _number(found.get("num_gpu_blocks"))
        return CacheConfig(
            block_size=_number(found.get("block_size")),
            num_gpu_blocks=blocks / sharing if blocks is not None else None,
            cache_dtype=found.get("cache_dtype"),
            enable_prefix_caching={"True": True, "False": False}.get(found.get("enable_prefix_caching", "")),
            gpu_memory_utilization=_number(found.get("gpu_memory_utilization")),
            kv_cache_size_tokens=_number(found.get("kv_cache_size_tokens")),
            kv_cache_max_concurrency=_number(found.get("kv_cache_max_concurrency")),
            mamba_block_size=_number(found.get("mamba_block_size")),
            mamba_cache_mode=found.get("mamba_cache_mode"),
            prefix_match_unit=_number(found.get("prefix_match_unit")),
            hybrid=any(_number(found.get(n)) for n in ("mamba_page_size_padded", "mamba_block_size")),
            known=True,
            labels=tuple(sorted(_common(self.config_labels[key]).items())[:_MAX_LABELS]),
        )

    def _generation(self, key: tuple[str, str], found: Mapping[str, object]) -> str:
        if key in self.with_engine_label or "prefix_cache_queried_tokens_total" in found:
            return "v1"
        return "v0"

    def _features(self, families: Iterable[str]) -> frozenset[str]:
        found: set[str] = set()
        for family in families:
            bare = self.vocabulary.native(family)
            if bare is not None:
                found.update(FEATURES[name] for name in (bare, f"{bare}_total") if name in FEATURES)
                found.update({"ray"} if family.startswith(RAY) else ())
        return frozenset(found)

    def _unknown(self, families: Iterable[str]) -> tuple[str, ...]:
        unknown = (
            f
            for f in families
            if (b := self.vocabulary.native(f)) is not None and not self.vocabulary.known(b)
        )
        return tuple(name[:_MAX_FAMILY] for name in sorted(set(unknown))[:_MAX_UNKNOWN])


def why_absent(vocabulary: Vocabulary, signal: str) -> str:
    """Why a signal is missing: which names were looked for, and which option exposes it."""
    names = ", ".join(vocabulary.names_of(signal))
    options = " or ".join(vocabulary.options_of(signal))
    hint = f"; vLLM exposes it only with {options}" if options else ""
    return f"not exposed (looked for {names}){hint}"


def _engine(labels: Mapping[str, str]) -> str:
    """The engine's number; "0" if vLLM has no such label (v0, and v1 before 0.8.3)."""
    engine, replica = labels.get("engine", "0"), _replica(labels)
    return f"{engine}/{replica}" if replica else engine


def _fits(label: str, known: Collection[str], limit: int) -> bool:
    """Whether a label value is known or may be added."""
    return label in known or (len(known) < limit and len(label) <= _MAX_NAME)


def _common(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The labels on which several series of one engine agree (a previous run's, another process')."""
    values_of: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            values_of.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in values_of.items() if len(values) == 1}


def _replica(labels: Mapping[str, str]) -> str:
    """The replica on a relay's page; empty on vLLM's own page."""
    return next((labels[name] for name in _REPLICA_LABELS if labels.get(name)), "")


def _le(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "None") else value


def _number(text: str | None) -> float | None:
    """A number in a label; None for "None", a missing label, or a value that no count can have."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
