"""Samples of a page to one Snapshot per engine.

Theory of operation
    Everything but the numbers is the same from scrape to scrape: which series belong to which engine, which
    alias of a signal is the best one exposed, what the cache configuration says, what is missing and why.
    So a page is normalised in two steps. `_Plan` is worked out from the series alone and kept as long as the
    list of series stays the same; applying it picks numbers out of a list. A changed page makes a new plan.

Rules that keep numbers right
    - Candidates of a signal are ordered: newest alias, preferred spelling, exact name. The first that gives
      one unambiguous value wins; candidates are never added up.
    - Series that differ in nothing kvwatch understands (``pid`` of multi-process mode, labels of a relay) must
      agree; otherwise nobody can say which one is alive and the signal is missing.
    - A router's copies (label ``server``, no ``model_name``) are refused.
    - Replicas that a relay puts on one page (``ReplicaId``, ``WorkerId``) are engines of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvwatch.core.exposition import Exposition, Reader, Series
from kvwatch.core.signals import BY_NAME, CORE, SIGNALS, Kind, Level, Signal
from kvwatch.core.snapshot import NOT_YET, CacheConfig, EngineKey, Histogram, Snapshot, Value
from kvwatch.core.vllm import CONFIG_LABELS, FEATURES, Alias, Part, Role, Unit, Vocabulary

_REPLICA_LABELS = ("ReplicaId", "WorkerId")
#: Label values of one signal beyond this are a broken page, not vLLM.
_MAX_DIMENSION = 32
_MAX_ENGINES = 256


@dataclass(frozen=True, slots=True)
class Page:
    """A normalised page.

    `engines` by key; `server` has what concerns the whole target. `unknown_families` are vLLM's families that
    kvwatch has never heard of: tomorrow's rename. `exposed` are the sample names that were read.
    `configured` says that a cache configuration was there, which even an idle server shows.
    """

    engines: Mapping[EngineKey, Snapshot]
    server: Snapshot
    unknown_families: tuple[str, ...]
    exposed: tuple[str, ...]
    configured: bool


@dataclass(slots=True)
class _Candidate:
    """One alias as exposed for one signal of one engine: where its numbers are in the list of values."""

    alias: Alias
    single: list[int] = field(default_factory=list)
    by_label: dict[str, list[int]] = field(default_factory=dict)
    sums: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    buckets: dict[float, list[int]] = field(default_factory=dict)
    _ladder: tuple[tuple[float, ...], tuple[int, ...], int | None, tuple[tuple[int, int], ...]] | None = None

    def add(self, part: Part, label: str | None, le: float | None, index: int) -> None:
        if part is Part.SUM:
            self.sums.append(index)
        elif part is Part.COUNT:
            self.counts.append(index)
        elif part is Part.BUCKET:
            if le is not None:
                self.buckets.setdefault(le, []).append(index)
        elif label is not None:
            self.by_label.setdefault(label, []).append(index)
        else:
            self.single.append(index)

    def read(self, values: Sequence[float], signal: Signal, scale: float) -> Value | str:
        """The value, or why there is none."""
        if signal.kind is Kind.HISTOGRAM:
            return self._histogram(values)
        if signal.dimension:
            found: dict[str, float] = {}
            for label, indexes in self.by_label.items():
                one = _agreed(values, indexes, signal, scale)
                if isinstance(one, str):
                    return one
                found[label] = one
            return found or f"exposed without the label '{self.alias.label}'"
        return _agreed(values, self.single, signal, scale)

    def _histogram(self, values: Sequence[float]) -> Value | str:
        if not self.sums or not self.counts:
            return "the histogram's sum or count is not exposed"
        if self._ladder is None:
            self._ladder = self._climb()
        bounds, indexes, infinite, copies = self._ladder
        if copies and any(values[one] != values[other] for one, other in copies):
            return "several series of one engine disagree"
        total, count = values[self.sums[0]], values[self.counts[0]]
        if infinite is not None:
            count = values[infinite]  # taken with the buckets; `_count` may be a moment younger
        counts = tuple([values[i] for i in indexes])
        rising = [0.0, *counts, count]
        if not math.isfinite(sum(rising) + total):
            return "not a number"
        if rising != sorted(rising):
            return "the buckets are not cumulative"
        return Histogram(total, count, bounds, counts)

    def _climb(self) -> tuple[tuple[float, ...], tuple[int, ...], int | None, tuple[tuple[int, int], ...]]:
        """Finite bounds ascending, where their counts are, where the last one is, and which must agree."""
        finite = sorted(le for le in self.buckets if not math.isinf(le))
        infinite = self.buckets.get(math.inf)
        copies = tuple(
            (found[0], other)
            for found in (self.sums, self.counts, *self.buckets.values())
            for other in found[1:]
        )
        indexes = tuple(self.buckets[le][0] for le in finite)
        return tuple(finite), indexes, infinite[0] if infinite else None, copies


def _agreed(values: Sequence[float], indexes: Sequence[int], signal: Signal, scale: float) -> float | str:
    value = values[indexes[0]] if indexes else math.nan
    if not indexes:
        return "exposed with labels that kvwatch does not expect"
    if len(indexes) > 1 and any(values[i] != value for i in indexes[1:]):
        return "several processes or copies report different values, and nothing says which one is alive"
    if not math.isfinite(value):
        return f"vLLM reports {value}"
    if value < signal.low:
        if value == -1 and signal.name == "prefix_cache_lifetime_hit_ratio":
            return "vLLM reports -1: prefix caching is off, or nothing was looked up yet"
        return f"vLLM reports {value:g}, below {signal.low:g}"
    value *= scale
    if value > signal.high:
        if value <= signal.high * 1.0001:
            return signal.high
        return f"vLLM reports {value:g}, above {signal.high:g}: dead processes may be counted"
    return value


@dataclass(slots=True)
class _EnginePlan:
    candidates: dict[str, list[_Candidate]]
    config: CacheConfig
    generation: str


@dataclass(slots=True)
class _Plan:
    series: list[Series]
    help: dict[str, str]
    engines: dict[tuple[str, str], _EnginePlan]
    server: dict[str, list[_Candidate]]
    features: frozenset[str]
    unknown: tuple[str, ...]
    families: tuple[str, ...]
    exposed: tuple[str, ...]
    configured: bool


class Interpreter:
    """Reads the pages of one target: bytes to `Page`. Remembers series and plans, which hardly change.

    A cache of a pure function: what it read before never changes what it says.
    """

    def __init__(self, vocabulary: Vocabulary, target: str) -> None:
        self.vocabulary = vocabulary
        self.target = target
        self._reader = Reader(lambda name: vocabulary.role(name) is not None, vocabulary.begins)
        self._plans: list[_Plan] = []
        self._absent: dict[str, str] = {}

    def read(self, body: bytes, *, openmetrics: bool = False) -> Page:
        """Normalises a page; raises `kvwatch.core.exposition.BadExposition`."""
        page = self._reader.read(body, openmetrics=openmetrics)
        return self._apply(self._plan(page), page.values)

    def _plan(self, page: Exposition) -> _Plan:
        for plan in () if page.conflicts else self._plans:
            if plan.series == page.series and plan.help == page.help and plan.families == page.families:
                return plan
        plan = _Planner(self.vocabulary, page).plan()
        if not page.conflicts:
            self._plans = [plan, *self._plans[:3]]
        return plan

    def _apply(self, plan: _Plan, values: Sequence[float]) -> Page:
        engines = {}
        for (model, engine), one in plan.engines.items():
            key = EngineKey(self.target, model, engine)
            snapshot = self._snapshot(key, one.candidates, Level.ENGINE, values, one.config)
            engines[key] = replace(snapshot, generation=one.generation, features=plan.features)
        server = self._snapshot(EngineKey(self.target), plan.server, Level.TARGET, values, CacheConfig())
        return Page(engines, server, plan.unknown, plan.exposed, plan.configured)

    def _snapshot(
        self,
        key: EngineKey,
        candidates: Mapping[str, list[_Candidate]],
        level: Level,
        values: Sequence[float],
        config: CacheConfig,
    ) -> Snapshot:
        found: dict[str, Value] = {}
        missing: dict[str, str] = {}
        caveats: dict[str, str] = {}
        for signal in SIGNALS:
            if signal.level is not level or signal.kind is Kind.INFO:
                continue
            reason = ""
            for candidate in candidates.get(signal.name, ()):
                scale = _scale(candidate.alias, config)
                value = candidate.read(values, signal, scale) if isinstance(scale, float) else scale
                if not isinstance(value, str):
                    found[signal.name] = value
                    if candidate.alias.caveat:
                        caveats[signal.name] = candidate.alias.caveat
                    break
                reason = reason or value
            else:
                missing[signal.name] = reason or self._why_absent(signal.name)
        served = _served(found)
        if level is Level.ENGINE and not served:
            for name in CORE:
                if name in missing and name not in candidates:
                    names = ", ".join(self.vocabulary.names_of(name))
                    missing[name] = f"{NOT_YET}: it comes with the first request served (looked for {names})"
        if level is Level.ENGINE and not config.known:
            missing["cache_config"] = self._why_absent("cache_config")
        return Snapshot(key, found, missing, caveats, config, served=served)

    def _why_absent(self, signal: str) -> str:
        if signal not in self._absent:
            names = ", ".join(self.vocabulary.names_of(signal))
            options = " or ".join(self.vocabulary.options_of(signal))
            hint = f"; vLLM exposes it only with {options}" if options else ""
            self._absent[signal] = f"not exposed (looked for {names}){hint}"
        return self._absent[signal]


def _served(found: Mapping[str, Value]) -> bool:
    """Whether any counter shows that this engine ever did anything."""
    return any(
        value > 0 if isinstance(value, float) else isinstance(value, Histogram) and value.count > 0
        for name, value in found.items()
        if BY_NAME[name].kind is not Kind.GAUGE
    )


def _scale(alias: Alias, config: CacheConfig) -> float | str:
    if alias.unit is Unit.SAME:
        return 1.0
    if alias.unit is Unit.BLOCKS:
        return config.block_size or "counted in blocks, and the block size is not exposed"
    return "blocks or tokens: its HELP text, which would say which, is not on the page"


class _Planner:
    """Works out a plan from the series of a page."""

    def __init__(self, vocabulary: Vocabulary, page: Exposition) -> None:
        self.vocabulary = vocabulary
        self.page = page
        self.engines: dict[tuple[str, str], dict[str, dict[tuple[int, int, bool], _Candidate]]] = {}
        self.server: dict[str, dict[tuple[int, int, bool], _Candidate]] = {}
        self.configs: dict[tuple[str, str], list[dict[str, str]]] = {}
        """By replica and engine, each empty where the series has no such label."""
        self.labelled: set[tuple[str, str]] = set()

    def plan(self) -> _Plan:
        page = self.page
        for index, series in enumerate(page.series):
            role = self.vocabulary.role(series.name)
            if role is not None:
                self._place(series, role, index)
        features = self._features(page.families)
        engines = {
            key: _EnginePlan(_ordered(found), self._config(key[1]), self._generation(key, found))
            for key, found in list(self.engines.items())[:_MAX_ENGINES]
        }
        return _Plan(
            series=page.series,
            help=page.help,
            engines=engines,
            server=_ordered(self.server),
            features=features,
            unknown=self._unknown(page.families),
            families=page.families,
            exposed=tuple(sorted({series.name for series in page.series})),
            configured=bool(self.configs),
        )

    def _place(self, series: Series, role: Role, index: int) -> None:
        signal = role.signal
        labels = dict(series.labels)
        if "server" in labels and "model_name" not in labels:
            return
        if signal.kind is Kind.INFO:
            self._place_config(labels)
            return
        rank, alias = self._alias(role, series.name)
        label = None
        if signal.dimension:
            label = labels.get(alias.label)
        le = _le(labels.get("le")) if role.part is Part.BUCKET else None
        if signal.level is Level.TARGET:
            slot = self.server
        else:
            key = (labels.get("model_name", ""), _engine(labels))
            if "engine" in labels:
                self.labelled.add(key)
            slot = self.engines.setdefault(key, {})
        ranked = slot.setdefault(signal.name, {})
        order = (rank, role.spelling, not role.exact)
        candidate = ranked.setdefault(order, _Candidate(alias))
        if (
            label is not None
            and len(candidate.by_label) >= _MAX_DIMENSION
            and label not in candidate.by_label
        ):
            return
        if signal.dimension and label is None:
            return
        candidate.add(role.part, label, le, index)
        if series in self.page.conflicts:
            candidate.add(role.part, label, le, self._other())

    def _place_config(self, labels: Mapping[str, str]) -> None:
        key = (_replica(labels), labels.get("engine", ""))
        found = {name: value for name in CONFIG_LABELS if (value := _text(labels.get(name))) is not None}
        self.configs.setdefault(key, []).append(found)

    def _other(self) -> int:
        """An index whose value certainly differs: a series exposed twice with different values is ambiguous."""
        self.page.values.append(math.nan)
        return len(self.page.values) - 1

    def _alias(self, role: Role, name: str) -> tuple[int, Alias]:
        if len(role.aliases) > 1:
            text = self.page.help.get(name) or self.page.help.get(name.removesuffix("_total")) or ""
            for rank, alias in role.aliases:
                if not alias.help_has or alias.help_has in text:
                    return rank, alias
        return role.aliases[0]

    def _config(self, engine: str) -> CacheConfig:
        rank, _, replica = engine.partition("/")
        keys = ((replica, rank), (replica, ""), ("", rank), ("", ""))
        key = next((key for key in keys if key in self.configs), None)
        if key is None:
            return CacheConfig()
        found = _common(self.configs[key])
        # Under internal data parallelism vLLM repeats the sum over engines on every engine's series.
        sharing = sum(
            1 for (of, _), other in self.configs.items() if of == key[0] and _common(other) == found
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
            hybrid=any(_number(found.get(n)) for n in ("mamba_page_size_padded", "mamba_block_size")),
            known=True,
        )

    def _generation(self, key: tuple[str, str], found: Mapping[str, object]) -> str:
        if key in self.labelled or "prefix_cache_queried_tokens_total" in found:
            return "v1"
        return "v0"

    def _features(self, families: Iterable[str]) -> frozenset[str]:
        found: set[str] = set()
        for family in families:
            bare = self.vocabulary.native(family)
            if bare is not None:
                found.update(FEATURES[name] for name in (bare, f"{bare}_total") if name in FEATURES)
        return frozenset(found)

    def _unknown(self, families: Iterable[str]) -> tuple[str, ...]:
        unknown = (
            f
            for f in families
            if (b := self.vocabulary.native(f)) is not None and not self.vocabulary.known(b)
        )
        return tuple(sorted(set(unknown)))[:100]


def _ordered(slots: Mapping[str, Mapping[tuple[int, int, bool], _Candidate]]) -> dict[str, list[_Candidate]]:
    return {name: [ranked[order] for order in sorted(ranked)] for name, ranked in slots.items()}


def _engine(labels: Mapping[str, str]) -> str:
    """The engine's number; "0" where vLLM has no such label (v0, and v1 before 0.8.3)."""
    engine, replica = labels.get("engine", "0"), _replica(labels)
    return f"{engine}/{replica}" if replica else engine


def _common(rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What several series of one engine (a former run's, another process') say, where they agree."""
    said: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            said.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in said.items() if len(values) == 1}


def _replica(labels: Mapping[str, str]) -> str:
    """Which of several servers that a relay puts on one page; empty on a page of vLLM's own."""
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
    """A number in a label; None for "None", for none, and for what no count can be."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def signal_of(name: str) -> Signal:
    """The signal of that name; KeyError if there is none."""
    return BY_NAME[name]
