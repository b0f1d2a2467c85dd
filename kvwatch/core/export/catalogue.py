"""Every metric that kvwatch exports, one row each. The only file that spells their prefix.

A row owns everything about its metric: name, type, help, labels, and how its samples are read off a state. The
collector and the documentation are made from the rows. A value that is missing gives no sample. A target that is down
has no samples of vLLM's signals; kvwatch's own counters continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from kvwatch.core.export import evidence_samples
from kvwatch.core.export.findings import causes_of, explained_by, lifecycles
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, QUANTILES, TOTAL_LENGTH, percentile_name
from kvwatch.core.judgement.state import USAGE_BOUNDS, USAGE_MARKS, EngineState, State
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope
from kvwatch.core.model.gpu import Gpu
from kvwatch.core.model.signals import CORE, SIGNALS, Signal, SignalKind, SignalScope
from kvwatch.core.model.snapshot import EngineKey, Histogram, Snapshot

PREFIX = "kvwatch_"
_MAX_ACTION_TEXT = 250
"""Characters of an action in a label."""


class Type(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class MetricGroup(StrEnum):
    """The section of a metric in the documentation."""

    SELF = "kvwatch and its scrapes"
    REGIME = "Time and regimes"
    SYMPTOM = "Symptoms"
    SIGNAL = "vLLM's signals under one set of names"
    DERIVED = "Derived numbers"
    GPU = "GPUs"
    NOTIFY = "Direct notification"


@dataclass(frozen=True, slots=True)
class MetricSource:
    """What samples are read off: a target's state at `now` (monotonic seconds), and its poller's counts."""

    state: State
    now: float
    polls: int = 0
    missed_ticks: int = 0
    unexpected_errors: int = 0


Sample = tuple[tuple[str, ...], float | Histogram]
"""Label values in the order of the row's labels, and the value."""


@dataclass(frozen=True, slots=True)
class NotificationCounts:
    """Posts to one Alertmanager by outcome, and the time of the last success in unix seconds."""

    alertmanager: str
    outcomes: Mapping[str, int]
    last_success: float | None = None


@dataclass(frozen=True, slots=True)
class ReloadCounts:
    """Reloads of the settings by outcome, whether the last one succeeded (`good`), and the time of the last success
    in unix seconds."""

    outcomes: Mapping[str, int]
    good: bool = True
    last_success: float | None = None


def _nothing(_: MetricSource | NotificationCounts | ReloadCounts) -> Iterable[Sample]:
    return ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family. Its samples are read off each target (`samples`), each Alertmanager (`deliveries`) or the
    settings (`reloads`). Those of a `volatile` family change even if the states of all targets stay the same."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[MetricSource], Iterable[Sample]] = _nothing
    deliveries: Callable[[NotificationCounts], Iterable[Sample]] = _nothing
    reloads: Callable[[ReloadCounts], Iterable[Sample]] = _nothing
    volatile: bool = False
    type: Type = Type.GAUGE
    group: MetricGroup = MetricGroup.SELF

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


TARGET = ("target",)
ENGINE = ("target", "model_name", "engine")
_G, _C, _H = Type.GAUGE, Type.COUNTER, Type.HISTOGRAM


def _target_row(
    group: MetricGroup,
    name: str,
    text: str,
    value: Callable[[MetricSource], float | None],
    *,
    type: Type = _G,  # noqa: A002 - as the field
    volatile: bool = False,
) -> Metric:
    """A row with one sample per target."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        found = value(reading)
        if found is not None:
            yield (reading.state.target,), float(found)

    return Metric(name, text, TARGET, samples, volatile=volatile, type=type, group=group)


def _each(
    value: Callable[[EngineState], float | Histogram | None],
) -> Callable[[MetricSource], Iterator[Sample]]:
    """Samples of one value per engine, while the target is up."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        for engine in _live(reading):
            found = value(engine)
            if found is not None:
                yield tuple(engine.key), found

    return samples


def _live(reading: MetricSource) -> Iterable[EngineState]:
    state = reading.state
    return [e for e in state.engines.values() if e.seen_at == state.good_at] if state.up else ()


# -- rows from the tables of signals and derived numbers ------------------------------------------------------


def _signal_row(signal: Signal) -> Metric:
    of_target = signal.scope is SignalScope.TARGET
    base = TARGET if of_target else ENGINE

    def snapshots(reading: MetricSource) -> Iterator[tuple[tuple[str, ...], Snapshot]]:
        if of_target:
            if reading.state.up and reading.state.server:
                yield (reading.state.target,), reading.state.server
        else:
            for engine in _live(reading):
                yield tuple(engine.key), engine.snapshot

    def samples(reading: MetricSource) -> Iterator[Sample]:
        for key, snapshot in snapshots(reading):
            value = snapshot.values.get(signal.name)
            if isinstance(value, Mapping):
                for label, number in value.items():
                    yield (*key, label), number
            elif isinstance(value, float) or (isinstance(value, Histogram) and value.bounds):
                yield key, value

    labels = (*base, signal.dimension) if signal.dimension else base
    type_ = Type(signal.kind.value)
    return Metric(signal.name, signal.help, labels, samples, type=type_, group=MetricGroup.SIGNAL)


def _percentile_row(name: str, text: str) -> Metric:
    def samples(reading: MetricSource) -> Iterator[Sample]:
        for engine in _live(reading):
            for q in QUANTILES:
                value = engine.derived.get(percentile_name(name, q))
                if value is not None:
                    yield (*engine.key, f"{q * 100:g}"), value

    return Metric(name, text, (*ENGINE, "percentile"), samples, group=MetricGroup.DERIVED)


def _derived_row(name: str, text: str) -> Metric:
    samples = _each(lambda engine: engine.derived.get(name))
    return Metric(name, text, ENGINE, samples, group=MetricGroup.DERIVED)


# -- samples ----------------------------------------------------------------------------------------------------


def _outcomes(reading: MetricSource) -> Iterator[Sample]:
    for kind, count in reading.state.outcomes.items():
        yield (reading.state.target, kind), float(count)


def _regime_now(reading: MetricSource) -> Iterator[Sample]:
    state = reading.state
    for key, regime in _regimes(state):
        for one in Regime:
            yield (*key, one.value), float(one is regime)


def _regimes(state: State) -> Iterator[tuple[EngineKey, Regime]]:
    if not state.engines:
        yield EngineKey(state.target), state.regime_without_engines
    for key, engine in state.engines.items():
        yield key, engine.regime


def _regime_seconds(reading: MetricSource) -> Iterator[Sample]:
    state = reading.state
    for one in Regime:
        yield (*EngineKey(state.target), one.value), state.regime_seconds_without_engines.get(one, 0.0)
    for key, engine in state.engines.items():
        for one in Regime:
            yield (*key, one.value), engine.regime_seconds.get(one, 0.0)


def _usage_seconds(reading: MetricSource) -> Iterator[Sample]:
    for key, engine in reading.state.engines.items():
        for mark in USAGE_MARKS:
            yield (*key, f"{mark:g}"), engine.usage_seconds.get(mark, 0.0)


def _usage_histogram(reading: MetricSource) -> Iterator[Sample]:
    for key, engine in reading.state.engines.items():
        tally, running = engine.usage_tally, 0
        counts = []
        for count in tally.counts:
            running += count
            counts.append(float(running))
        yield tuple(key), Histogram(tally.sum, counts[-1], USAGE_BOUNDS, tuple(counts[:-1]))


def _symptom_states(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        for stage in Stage:
            yield (*key, name, stage.value), float(stage is life.stage)


def _symptom_explained(reading: MetricSource) -> Iterator[Sample]:
    causes = causes_of(reading.state)
    for key, name, life in lifecycles(reading.state):
        by = explained_by(key, name, causes) if life.still_firing else ()
        yield (*key, name), float(bool(by))


def _symptom_firing(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        yield (*key, name), float(life.still_firing)


def _symptom_evidence(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        if life.still_firing:
            for fact, text, value in evidence_samples.samples(life.published):
                yield (*key, name, fact, text), value


def _symptom_actions(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        if life.still_firing:
            for rank, action in enumerate(life.advice.actions, 1):
                restart = str(action.restart).lower()
                yield (*key, name, action.lever, str(rank), restart, action.sentence[:_MAX_ACTION_TEXT]), 1.0


def _symptom_since(reading: MetricSource) -> Iterator[Sample]:
    state = reading.state
    if state.now is None or state.wall is None:
        return
    for key, name, life in lifecycles(state):
        if life.since is not None:
            yield (*key, name), round(state.wall - (state.now - life.since), 1)


def _symptom_transitions(reading: MetricSource) -> Iterator[Sample]:
    state = reading.state
    tallies = [(EngineKey(state.target), Scope.TARGET, state.transitions)]
    tallies += [(key, Scope.ENGINE, engine.transitions) for key, engine in state.engines.items()]
    for key, scope, counts in tallies:
        for row in SYMPTOMS:
            if row.scope is scope and row.id not in state.policy.disabled:
                for stage in Stage:
                    yield (*key, row.id, stage.value), float(counts.get((row.id, stage), 0))


def _symptom_info(reading: MetricSource) -> Iterator[Sample]:
    for row in SYMPTOMS:
        if row.id not in reading.state.policy.disabled:
            yield (reading.state.target, row.id, row.severity.value, row.title), 1.0


def _core_missing(reading: MetricSource) -> Iterator[Sample]:
    for engine in _live(reading):
        for name in CORE:
            yield (*engine.key, name), float(name in engine.snapshot.missing)


_CONFIG_FACTS = (
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_max_concurrency",
)
"""Fields of `CacheConfig` that are labels."""


def _config(reading: MetricSource) -> Iterator[Sample]:
    for engine in _live(reading):
        config = engine.snapshot.config
        if config.known:
            facts = [_label_value(getattr(config, name)) for name in _CONFIG_FACTS]
            yield (*engine.key, engine.snapshot.generation, *facts), 1.0


def _label_value(fact: object) -> str:
    """A fact as a label value; empty if unknown."""
    if fact is None:
        return ""
    if isinstance(fact, bool):
        return str(fact).lower()
    return f"{fact:g}" if isinstance(fact, float) else str(fact)


def _server_info(reading: MetricSource) -> Iterator[Sample]:
    facts = reading.state.facts
    if facts and facts.version:
        yield (reading.state.target, facts.version), 1.0


def _max_model_len(reading: MetricSource) -> Iterator[Sample]:
    facts = reading.state.facts
    for model, length in ((facts.max_model_len if facts else None) or {}).items():
        yield (reading.state.target, model), float(length)


def _startup_verdict(reading: MetricSource) -> Iterator[Sample]:
    if reading.state.log is not None:
        yield (reading.state.target, reading.state.log.verdict), 1.0


def _gpu_row(name: str, text: str, value: Callable[[Gpu], float | None]) -> Metric:
    """A row with one sample per GPU with a present reading, whether or not the target is up."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        for gpu in reading.state.gpu.current(reading.now):
            found = value(gpu)
            if found is not None:
                yield (reading.state.target, gpu.label), found

    return Metric(name, text, (*TARGET, "gpu"), samples, volatile=True, group=MetricGroup.GPU)


def _gpu_info(reading: MetricSource) -> Iterator[Sample]:
    gpus = reading.state.gpu
    source = gpus.reading.source if gpus.reading else ""
    for gpu in gpus.current(reading.now):
        yield (reading.state.target, gpu.label, gpu.uuid, gpu.name, source), 1.0


def _gpu_readings(reading: MetricSource) -> Iterator[Sample]:
    for outcome, count in reading.state.gpu.outcomes.items():
        yield (reading.state.target, outcome), float(count)


def _notifications(sent: NotificationCounts) -> Iterator[Sample]:
    for outcome, count in sent.outcomes.items():
        yield (sent.alertmanager, outcome), float(count)


def _last_notified(sent: NotificationCounts) -> Iterator[Sample]:
    if sent.last_success is not None:
        yield (sent.alertmanager,), round(sent.last_success, 1)


def _reloads(settings: ReloadCounts) -> Iterator[Sample]:
    for outcome, count in settings.outcomes.items():
        yield (outcome,), float(count)


def _last_reloaded(settings: ReloadCounts) -> Iterator[Sample]:
    if settings.last_success is not None:
        yield (), round(settings.last_success, 1)


def _hit_ratio_trusted(engine: EngineState) -> float | None:
    name, derived = "prefix_cache_hit_ratio", engine.derived
    return float(name not in derived.untrusted) if name in derived.values else None


def _age(reading: MetricSource) -> float | None:
    good_at = reading.state.good_at
    return None if good_at is None else max(reading.now - good_at, 0.0)


_of_target = partial(_target_row, MetricGroup.SELF)
_regime = partial(Metric, group=MetricGroup.REGIME)
_symptom = partial(Metric, group=MetricGroup.SYMPTOM)
_signal = partial(Metric, group=MetricGroup.SIGNAL)
_gpu = partial(Metric, group=MetricGroup.GPU)
_notify = partial(Metric, group=MetricGroup.NOTIFY, volatile=True)

METRICS: tuple[Metric, ...] = (
    # -- kvwatch and its scrapes ----------------------------------------------------------------------------
    _of_target(
        "up",
        "1 if the newest scrape of the target returned vLLM's metrics, else 0.",
        lambda r: None if r.state.up is None else float(r.state.up),
    ),
    Metric(
        "scrapes_total",
        "Scrapes of the target by outcome: ok, or the kind of failure.",
        (*TARGET, "outcome"),
        _outcomes,
        type=_C,
    ),
    _of_target(
        "scrape_duration_seconds",
        "Duration of the newest scrape.",
        lambda r: r.state.last.duration_s if r.state.last else None,
    ),
    _of_target(
        "scrape_interval_seconds",
        "Current interval between scrapes. The duty cycle and the back-off after failures lengthen it.",
        lambda r: r.state.last.interval_s if r.state.last else None,
    ),
    _of_target(
        "scrape_body_bytes",
        "Size of the newest page.",
        lambda r: r.state.last.body_bytes if r.state.last else None,
    ),
    _of_target(
        "scrape_narrowed",
        "1 if the newest scrape requested only the families that kvwatch reads.",
        lambda r: float(r.state.last.narrowed) if r.state.last else None,
    ),
    _of_target(
        "data_age_seconds",
        "Age of the exported data. kvwatch scrapes on its own clock, so that it sees what happens between two scrapes"
        " of Prometheus.",
        _age,
        volatile=True,
    ),
    _of_target("polls_total", "Polls of the target.", lambda r: r.polls, type=_C, volatile=True),
    _of_target(
        "polls_missed_total",
        "Polls that were skipped because the previous one had not finished.",
        lambda r: r.missed_ticks,
        type=_C,
        volatile=True,
    ),
    _of_target(
        "poll_errors_total",
        "Internal errors of kvwatch while polling. Each one is a bug.",
        lambda r: r.unexpected_errors,
        type=_C,
        volatile=True,
    ),
    _of_target(
        "unknown_families",
        "Metric families of vLLM that this kvwatch does not know.",
        lambda r: len(r.state.unknown_families) if r.state.up else None,
    ),
    _of_target(
        "engines",
        "Engines of the target, including those that disappeared from its metrics within the history; at most"
        " 256.",
        lambda r: len(r.state.engines),
    ),
    _of_target(
        "series_left_out",
        "Series of vLLM that kvwatch does not read because they exceed a limit: 256 engines, 32 values of a label,"
        " 200 buckets, names of 1000 characters.",
        lambda r: r.state.left_out if r.state.up else None,
    ),
    Metric(
        "core_signal_missing",
        "1 if a signal that the regime requires is missing, else 0.",
        (*ENGINE, "signal"),
        _core_missing,
    ),
    Metric(
        "config_reloads_total",
        "Reloads of the settings (SIGHUP) by outcome: ok, or failed, which keeps the previous settings.",
        ("outcome",),
        reloads=_reloads,
        volatile=True,
        type=_C,
    ),
    Metric(
        "config_last_reload_successful",
        "1 if the last reload of the settings succeeded, 0 if it failed.",
        (),
        reloads=lambda settings: [((), float(settings.good))],
        volatile=True,
    ),
    Metric(
        "config_last_reload_success_timestamp_seconds",
        "When the current settings were read, unix seconds.",
        (),
        reloads=_last_reloaded,
        volatile=True,
    ),
    # -- time and regimes -----------------------------------------------------------------------------------
    _regime(
        "regime",
        "1 for the current regime: why requests wait, if they do.",
        (*ENGINE, "regime"),
        _regime_now,
    ),
    _regime(
        "regime_seconds_total",
        "Seconds in each regime; they add up to the time watched. The label model_name is empty while no engine"
        " is known.",
        (*ENGINE, "regime"),
        _regime_seconds,
        type=_C,
    ),
    _regime(
        "kv_cache_usage_above_seconds_total",
        "Seconds with KV cache usage at or above the threshold.",
        (*ENGINE, "threshold"),
        _usage_seconds,
        type=_C,
    ),
    _regime(
        "kv_cache_usage_sampled_ratio",
        "KV cache usage, one observation per scrape of kvwatch.",
        ENGINE,
        _usage_histogram,
        type=_H,
    ),
    _target_row(
        MetricGroup.REGIME,
        "engine_restarts_total",
        "Restarts of vLLM that kvwatch saw.",
        lambda r: r.state.restarts,
        type=_C,
    ),
    _regime(
        "startup_verdict",
        "1 for the verdict on vLLM's newest start, from its log (setting vllm_log): a cause of failure, ok or"
        " ok_but_tight.",
        (*TARGET, "verdict"),
        _startup_verdict,
    ),
    # -- symptoms -------------------------------------------------------------------------------------------
    _symptom(
        "symptom_state",
        "1 for the symptom's state: inactive, pending, firing, or unknown (its signals are missing). Symptoms of the"
        " whole target have no model_name and no engine.",
        (*ENGINE, "symptom", "state"),
        _symptom_states,
    ),
    _symptom(
        "symptom_firing",
        "1 while the symptom fires, and while it is unknown after it fired, because unknown does not resolve it. The"
        " alerts use this metric.",
        (*ENGINE, "symptom"),
        _symptom_firing,
    ),
    _symptom(
        "symptom_evidence",
        "The numbers that made a symptom fire, by name, in the unit that the name ends in; only while it fires."
        " Evidence that is text is in the label text, with the value 1.",
        (*ENGINE, "symptom", "evidence", "text"),
        _symptom_evidence,
    ),
    _symptom(
        "symptom_action_info",
        "1 for each action to take, in the order of rank, only while the symptom fires. They change at most once a"
        " minute.",
        (*ENGINE, "symptom", "lever", "rank", "restart", "text"),
        _symptom_actions,
    ),
    _symptom(
        "symptom_explained",
        "1 while the symptom fires and another firing symptom covers it. Fix that one first; this one should"
        " not page.",
        (*ENGINE, "symptom"),
        _symptom_explained,
    ),
    _symptom(
        "symptom_since_timestamp_seconds",
        "When the symptom entered its state, unix seconds.",
        (*ENGINE, "symptom"),
        _symptom_since,
    ),
    _symptom(
        "symptom_transitions_total",
        "Times that the symptom entered a state.",
        (*ENGINE, "symptom", "to"),
        _symptom_transitions,
        type=_C,
    ),
    _symptom(
        "symptom_info",
        "1 for each symptom that kvwatch judges; severity and title are labels.",
        (*TARGET, "symptom", "severity", "title"),
        _symptom_info,
    ),
    # -- vLLM's signals -------------------------------------------------------------------------------------
    *(_signal_row(signal) for signal in SIGNALS if signal.kind is not SignalKind.INFO),
    _signal(
        "cache_config_info",
        "Always 1. vLLM's generation and cache configuration are labels, empty if unknown.",
        (*ENGINE, "generation", *_CONFIG_FACTS),
        _config,
    ),
    _signal(
        "server_info",
        "Always 1. vLLM's version is a label.",
        (*TARGET, "version"),
        _server_info,
    ),
    _signal(
        "max_model_len_tokens",
        "Longest request that the server accepts, by served model name.",
        (*TARGET, "model_name"),
        _max_model_len,
    ),
    # -- derived numbers ------------------------------------------------------------------------------------
    _derived_row(
        "cache_pressure_score",
        "Cache pressure, 0-1, over 1 min: 0.5 x occupancy + 0.3 x queueing + 0.2 x preemption. A full cache without"
        " waiting requests scores at most 0.5.",
    ),
    _derived_row(
        "cache_pressure_occupancy_ratio",
        "Part of the score: time-weighted 90th percentile of KV cache usage.",
    ),
    _derived_row(
        "cache_pressure_queueing_ratio",
        "Part of the score: share of time with requests waiting for the cache.",
    ),
    _derived_row(
        "cache_pressure_preemption_ratio",
        "Part of the score: preemptions / (preemptions + finished requests); it reaches 1 at 10 %.",
    ),
    _derived_row(
        "kv_cache_demand_ratio",
        "KV cache usage x (running + waiting) / running, 1 min average: the share of the cache that all running and"
        " waiting requests need at the current mean footprint. 1.0 is exactly full.",
    ),
    _derived_row(
        "kv_cache_usage_peak_1m_ratio",
        "Highest KV cache usage in any scrape of kvwatch within the last minute.",
    ),
    _derived_row("requests_waiting_peak_1m", "Highest number of waiting requests within the last minute."),
    _derived_row("kv_cache_capacity_tokens", "Tokens that the KV cache holds."),
    _derived_row(
        "prefix_cache_hit_ratio",
        "Prefix cache hit rate: hit tokens / looked-up tokens of the local cache over 5 min. See"
        " prefix_cache_hit_ratio_trusted.",
    ),
    _derived_row(
        "external_prefix_cache_hit_ratio",
        "Hit tokens / looked-up tokens of an external cache (a connector) over 5 min. Only tokens that the"
        " local cache does not hold are looked up; before vLLM 0.16, the whole prompt.",
    ),
    Metric(
        "prefix_cache_hit_ratio_trusted",
        "0 if the prefix cache hit rate is not reliable: more tokens were looked up than prompts have, or"
        " preempted requests found their own blocks. Else 1.",
        ENGINE,
        _each(_hit_ratio_trusted),
        group=MetricGroup.DERIVED,
    ),
    _derived_row(
        "prompt_tokens_reused_ratio",
        "Share of prompt tokens whose KV came from a local or external cache, over 5 min (vLLM 0.16+).",
    ),
    _derived_row("preemptions_per_finished_request", "Preemptions per finished request over 2 min."),
    _derived_row("prompt_tokens_per_second", "Prompt tokens per second over 1 min."),
    _derived_row("generation_tokens_per_second", "Generated tokens per second over 1 min."),
    _derived_row(
        "last_progress_age_seconds",
        "Time since a counter of progress or KV cache usage last changed.",
    ),
    *(
        _percentile_row(name, f"Percentiles of {signal.removesuffix('_seconds')} over 5 min.")
        for signal, name in LATENCIES.items()
    ),
    *(
        _percentile_row(name, f"Percentiles of {signal}, of the requests that finished within 1 h.")
        for signal, name in LENGTHS.items()
    ),
    _percentile_row(
        TOTAL_LENGTH,
        "Upper estimate of prompt plus generated tokens, of the requests that finished within 1 h: the sum of"
        " the two percentiles.",
    ),
    # -- GPUs -----------------------------------------------------------------------------------------------
    _gpu_row(
        "gpu_sm_active_ratio",
        "Share of the GPU's processors (SMs) that had work, 0-1, averaged over the SMs and the exporter's interval"
        " (DCGM).",
        lambda gpu: gpu.sm_active,
    ),
    _gpu_row(
        "gpu_dram_active_ratio",
        "Share of time in which the GPU's memory moved data, 0-1 (DCGM).",
        lambda gpu: gpu.dram_active,
    ),
    _gpu_row(
        "gpu_utilization_ratio",
        "Share of time in which any kernel ran on the GPU, 0-1. A low value shows that the GPU idles; 1 does"
        " not show that it is well used.",
        lambda gpu: gpu.utilization,
    ),
    _gpu_row("gpu_memory_used_bytes", "Used GPU memory.", lambda gpu: gpu.memory_used_bytes),
    _gpu_row("gpu_memory_free_bytes", "Free GPU memory.", lambda gpu: gpu.memory_free_bytes),
    _gpu(
        "gpu_info",
        "1 for each GPU of the target with a reading; UUID, name and source (dcgm, nvml) are labels. The label gpu is"
        " its index, or index and instance for a MIG instance (0/7).",
        (*TARGET, "gpu", "uuid", "name", "source"),
        _gpu_info,
        volatile=True,
    ),
    _gpu(
        "gpu_readings_total",
        "Readings of the target's GPUs by outcome, ok or failed; no sample without a source of GPU data.",
        (*TARGET, "outcome"),
        _gpu_readings,
        type=_C,
    ),
    # -- direct notification --------------------------------------------------------------------------------
    _notify(
        "notifications_total",
        "Posts of alerts to an Alertmanager by outcome: ok, or the kind of failure; no sample if none is configured.",
        ("alertmanager", "outcome"),
        deliveries=_notifications,
        type=_C,
    ),
    _notify(
        "notify_last_success_timestamp_seconds",
        "When an Alertmanager last accepted alerts, unix seconds. While nothing fires, kvwatch posts none.",
        ("alertmanager",),
        deliveries=_last_notified,
    ),
)
