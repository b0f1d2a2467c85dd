"""Every metric that kvwatch exports, one row each. The only file that spells their prefix.

A row owns everything about its metric: name, type, help, labels, and how its samples are read off a state. The
collector walks the rows, and the README's table is rendered from them. A value that is missing gives no
sample; a target that is down has no samples of vLLM's signals, while what kvwatch itself counts goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvwatch.core.export import evidence_samples
from kvwatch.core.export.findings import causes_of, explained_by, lifecycles
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.percentiles import LATENCIES, LENGTHS, QUANTILES, TOTAL_LENGTH, labelled
from kvwatch.core.judgement.state import USAGE_BOUNDS, USAGE_MARKS, EngineState, State
from kvwatch.core.judgement.symptoms import SYMPTOMS, Scope
from kvwatch.core.model.gpu import Gpu
from kvwatch.core.model.signals import CORE, SIGNALS, Level, Signal, SignalKind
from kvwatch.core.model.snapshot import EngineKey, Histogram, Snapshot

PREFIX = "kvwatch_"


class Type(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class MetricGroup(StrEnum):
    """Where a metric stands in the documentation."""

    SELF = "kvwatch and its scrapes"
    REGIME = "Time and regimes"
    SYMPTOM = "Symptoms"
    SIGNAL = "vLLM's signals under one set of names"
    DERIVED = "Derived numbers"
    GPU = "GPUs"
    NOTIFY = "Direct notification"


@dataclass(frozen=True, slots=True)
class MetricSource:
    """What samples are read off: a target's state at `now` (monotonic seconds), and what its poller counted."""

    state: State
    now: float
    polls: int = 0
    missed_ticks: int = 0
    unexpected_errors: int = 0


#: Label values in the order of the row's labels, and the value.
Sample = tuple[tuple[str, ...], float | Histogram]


@dataclass(frozen=True, slots=True)
class NotificationCounts:
    """What one Alertmanager was sent: posts by outcome, and when one last arrived, unix seconds."""

    alertmanager: str
    outcomes: Mapping[str, int]
    last_success: float | None = None


@dataclass(frozen=True, slots=True)
class ReloadCounts:
    """How often the settings were read anew, by outcome, and when they last were, unix seconds; `good` if the last
    try succeeded."""

    outcomes: Mapping[str, int]
    good: bool = True
    last_success: float | None = None


def _nothing(_: MetricSource | NotificationCounts | ReloadCounts) -> Iterable[Sample]:
    return ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family. Its samples are read off each target, off what each Alertmanager was sent, or off what
    became of the settings. Those of a `fleeting` one change while the states of all targets stay."""

    name: str
    type: Type
    group: MetricGroup
    help: str
    labels: tuple[str, ...]
    samples: Callable[[MetricSource], Iterable[Sample]] = _nothing
    deliveries: Callable[[NotificationCounts], Iterable[Sample]] = _nothing
    reloads: Callable[[ReloadCounts], Iterable[Sample]] = _nothing
    fleeting: bool = False

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


TARGET = ("target",)
ENGINE = ("target", "model_name", "engine")
_G, _C, _H = Type.GAUGE, Type.COUNTER, Type.HISTOGRAM


def _one(value: Callable[[MetricSource], float | None]) -> Callable[[MetricSource], Iterator[Sample]]:
    """A row of one sample per target."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        found = value(reading)
        if found is not None:
            yield (reading.state.target,), float(found)

    return samples


def _each(
    value: Callable[[EngineState], float | Histogram | None],
) -> Callable[[MetricSource], Iterator[Sample]]:
    """A row of one sample per engine, while the target is up."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        for engine in _live(reading):
            found = value(engine)
            if found is not None:
                yield tuple(engine.key), found

    return samples


def _live(reading: MetricSource) -> Iterable[EngineState]:
    state = reading.state
    return [e for e in state.engines.values() if e.seen_at == state.good_at] if state.up else ()


# -- rows made from the tables of signals and derived numbers -------------------------------------------------


def _signal_row(signal: Signal) -> Metric:
    target_level = signal.level is Level.TARGET
    base = TARGET if target_level else ENGINE

    def snapshots(reading: MetricSource) -> Iterator[tuple[tuple[str, ...], Snapshot]]:
        if target_level:
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
    return Metric(signal.name, Type(signal.kind.value), MetricGroup.SIGNAL, signal.help, labels, samples)


def _percentile_row(name: str, text: str) -> Metric:
    def samples(reading: MetricSource) -> Iterator[Sample]:
        for engine in _live(reading):
            for q in QUANTILES:
                value = engine.derived.get(labelled(name, q))
                if value is not None:
                    yield (*engine.key, f"{q * 100:g}"), value

    return Metric(name, _G, MetricGroup.DERIVED, text, (*ENGINE, "percentile"), samples)


def _derived_row(name: str, text: str) -> Metric:
    return Metric(name, _G, MetricGroup.DERIVED, text, ENGINE, _each(lambda engine: engine.derived.get(name)))


# -- samples of more than a line ------------------------------------------------------------------------------


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
        yield EngineKey(state.target), state.unattended
    for key, engine in state.engines.items():
        yield key, engine.regime


def _regime_seconds(reading: MetricSource) -> Iterator[Sample]:
    state = reading.state
    for one in Regime:
        yield (*EngineKey(state.target), one.value), state.unattended_seconds.get(one, 0.0)
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
        by = explained_by(key, name, causes) if life.goes_on else ()
        yield (*key, name), float(bool(by))


def _symptom_firing(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        yield (*key, name), float(life.goes_on)


def _symptom_evidence(reading: MetricSource) -> Iterator[Sample]:
    for key, name, life in lifecycles(reading.state):
        if life.goes_on:
            for fact, text, value in evidence_samples.samples(life.published):
                yield (*key, name, fact, text), value


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


def _config(reading: MetricSource) -> Iterator[Sample]:
    for engine in _live(reading):
        config = engine.snapshot.config
        if config.known:
            facts = (
                config.block_size,
                config.num_gpu_blocks,
                config.cache_dtype,
                config.enable_prefix_caching,
                config.gpu_memory_utilization,
                config.kv_cache_max_concurrency,
            )
            yield (*engine.key, engine.snapshot.generation, *map(_said, facts)), 1.0


def _said(fact: object) -> str:
    """A fact as a label; empty where vLLM does not say."""
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
    """A row of one sample per GPU, whether the target is up or not; none of a GPU that is not read at present."""

    def samples(reading: MetricSource) -> Iterator[Sample]:
        for gpu in reading.state.gpu.now(reading.now):
            found = value(gpu)
            if found is not None:
                yield (reading.state.target, gpu.label), found

    return Metric(name, _G, MetricGroup.GPU, text, (*TARGET, "gpu"), samples, fleeting=True)


def _gpu_info(reading: MetricSource) -> Iterator[Sample]:
    gpus = reading.state.gpu
    source = gpus.reading.source if gpus.reading else ""
    for gpu in gpus.now(reading.now):
        yield (reading.state.target, gpu.label, gpu.uuid, gpu.name, source), 1.0


def _gpu_readings(reading: MetricSource) -> Iterator[Sample]:
    for outcome, count in reading.state.gpu.outcomes.items():
        yield (reading.state.target, outcome), float(count)


def _notifications(sent: NotificationCounts) -> Iterator[Sample]:
    for outcome, count in sent.outcomes.items():
        yield (sent.alertmanager, outcome), float(count)


def _notified_at(sent: NotificationCounts) -> Iterator[Sample]:
    if sent.last_success is not None:
        yield (sent.alertmanager,), round(sent.last_success, 1)


def _reloads(settings: ReloadCounts) -> Iterator[Sample]:
    for outcome, count in settings.outcomes.items():
        yield (outcome,), float(count)


def _reloaded_at(settings: ReloadCounts) -> Iterator[Sample]:
    if settings.last_success is not None:
        yield (), round(settings.last_success, 1)


def _age(reading: MetricSource) -> float | None:
    good_at = reading.state.good_at
    return None if good_at is None else max(reading.now - good_at, 0.0)


_S, _R, _Y, _D = MetricGroup.SELF, MetricGroup.REGIME, MetricGroup.SYMPTOM, MetricGroup.DERIVED

METRICS: tuple[Metric, ...] = (
    # -- kvwatch and its scrapes ----------------------------------------------------------------------------
    Metric(
        "up",
        _G,
        _S,
        "1 if the newest scrape of the target gave vLLM's metrics, else 0.",
        TARGET,
        _one(lambda r: None if r.state.up is None else float(r.state.up)),
    ),
    Metric(
        "scrapes_total",
        _C,
        _S,
        "Scrapes of the target by outcome: ok, or the kind of failure.",
        (*TARGET, "outcome"),
        _outcomes,
    ),
    Metric(
        "scrape_duration_seconds",
        _G,
        _S,
        "How long the newest scrape took.",
        TARGET,
        _one(lambda r: r.state.last.duration_s if r.state.last else None),
    ),
    Metric(
        "scrape_interval_seconds",
        _G,
        _S,
        "Present interval between scrapes: stretched so that scraping stays under the duty cycle, or by back-off.",
        TARGET,
        _one(lambda r: r.state.last.interval_s if r.state.last else None),
    ),
    Metric(
        "scrape_body_bytes",
        _G,
        _S,
        "Size of the newest answer.",
        TARGET,
        _one(lambda r: r.state.last.body_bytes if r.state.last else None),
    ),
    Metric(
        "scrape_narrowed",
        _G,
        _S,
        "1 if the newest scrape asked only for the families that are read.",
        TARGET,
        _one(lambda r: float(r.state.last.narrowed) if r.state.last else None),
    ),
    Metric(
        "data_age_seconds",
        _G,
        _S,
        "Age of what is shown here. kvwatch polls on its own clock, so that it sees what lies between two of"
        " Prometheus' scrapes.",
        TARGET,
        _one(_age),
        fleeting=True,
    ),
    Metric("polls_total", _C, _S, "Polls of the target.", TARGET, _one(lambda r: r.polls), fleeting=True),
    Metric(
        "polls_missed_total",
        _C,
        _S,
        "Polls left out because the one before was not over.",
        TARGET,
        _one(lambda r: r.missed_ticks),
        fleeting=True,
    ),
    Metric(
        "poll_errors_total",
        _C,
        _S,
        "Errors of kvwatch itself while polling: each is a bug.",
        TARGET,
        _one(lambda r: r.unexpected_errors),
        fleeting=True,
    ),
    Metric(
        "unknown_families",
        _G,
        _S,
        "Families of vLLM that this kvwatch has never heard of.",
        TARGET,
        _one(lambda r: len(r.state.unknown_families) if r.state.up else None),
    ),
    Metric(
        "engines",
        _G,
        _S,
        "Engines that are kept, those that left the page within the history among them; at most 256 a target.",
        TARGET,
        _one(lambda r: len(r.state.engines)),
    ),
    Metric(
        "series_left_out",
        _G,
        _S,
        "Series of vLLM that are not read because they are beyond kvwatch's limits: 256 engines, 32 values of a"
        " label, 200 buckets, names of 1000 characters.",
        TARGET,
        _one(lambda r: r.state.left_out if r.state.up else None),
    ),
    Metric(
        "core_signal_missing",
        _G,
        _S,
        "1 if a signal without which no regime can be told is not there.",
        (*ENGINE, "signal"),
        _core_missing,
    ),
    Metric(
        "config_reloads_total",
        _C,
        _S,
        "Times that the settings were read anew (SIGHUP), by outcome: ok, or failed, which leaves the old in force.",
        ("outcome",),
        reloads=_reloads,
        fleeting=True,
    ),
    Metric(
        "config_last_reload_successful",
        _G,
        _S,
        "1 if the settings in force are those that were last found: 0 after a reload that failed.",
        (),
        reloads=lambda settings: [((), float(settings.good))],
        fleeting=True,
    ),
    Metric(
        "config_last_reload_success_timestamp_seconds",
        _G,
        _S,
        "When the settings in force were read, unix seconds.",
        (),
        reloads=_reloaded_at,
        fleeting=True,
    ),
    # -- time and regimes -----------------------------------------------------------------------------------
    Metric(
        "regime",
        _G,
        _R,
        "1 for the regime that holds now: why requests wait, if they do.",
        (*ENGINE, "regime"),
        _regime_now,
    ),
    Metric(
        "regime_seconds_total",
        _C,
        _R,
        "Seconds in each regime; they add up to the time watched. Without model_name while no engine was known.",
        (*ENGINE, "regime"),
        _regime_seconds,
    ),
    Metric(
        "kv_cache_usage_above_seconds_total",
        _C,
        _R,
        "Seconds with KV cache usage at or above the threshold.",
        (*ENGINE, "threshold"),
        _usage_seconds,
    ),
    Metric(
        "kv_cache_usage_sampled_ratio",
        _H,
        _R,
        "KV cache usage, one observation per scrape of kvwatch.",
        ENGINE,
        _usage_histogram,
    ),
    Metric(
        "engine_restarts_total",
        _C,
        _R,
        "Restarts of vLLM that kvwatch saw.",
        TARGET,
        _one(lambda r: r.state.restarts),
    ),
    Metric(
        "startup_verdict",
        _G,
        _R,
        "1 for what vLLM's log says of its newest start, where the log is given (vllm_log): a cause, ok or"
        " ok_but_tight.",
        (*TARGET, "verdict"),
        _startup_verdict,
    ),
    # -- symptoms -------------------------------------------------------------------------------------------
    Metric(
        "symptom_state",
        _G,
        _Y,
        "1 for the state that the symptom is in: inactive, pending, firing, or unknown (its signals are missing)."
        " Symptoms of the whole target have no model_name and no engine.",
        (*ENGINE, "symptom", "state"),
        _symptom_states,
    ),
    Metric(
        "symptom_firing",
        _G,
        _Y,
        "1 while the symptom fires, and while it can't be judged after it fired, since that does not end it: what the"
        " alerts ask.",
        (*ENGINE, "symptom"),
        _symptom_firing,
    ),
    Metric(
        "symptom_evidence",
        _G,
        _Y,
        "The numbers that made a symptom fire, by name, in the units that the name says; only while it fires. What is"
        " no number stands in the label text, with 1 as its value.",
        (*ENGINE, "symptom", "evidence", "text"),
        _symptom_evidence,
    ),
    Metric(
        "symptom_explained",
        _G,
        _Y,
        "1 while the symptom fires and another that fires accounts for it: act on that one, and let this one not"
        " page.",
        (*ENGINE, "symptom"),
        _symptom_explained,
    ),
    Metric(
        "symptom_since_timestamp_seconds",
        _G,
        _Y,
        "When the symptom entered its state, unix seconds.",
        (*ENGINE, "symptom"),
        _symptom_since,
    ),
    Metric(
        "symptom_transitions_total",
        _C,
        _Y,
        "Times that the symptom entered a state.",
        (*ENGINE, "symptom", "to"),
        _symptom_transitions,
    ),
    Metric(
        "symptom_info",
        _G,
        _Y,
        "1 for each symptom that is judged; severity and title in the labels.",
        (*TARGET, "symptom", "severity", "title"),
        _symptom_info,
    ),
    # -- vLLM's signals -------------------------------------------------------------------------------------
    *(_signal_row(signal) for signal in SIGNALS if signal.kind is not SignalKind.INFO),
    Metric(
        "cache_config_info",
        _G,
        MetricGroup.SIGNAL,
        "1; vLLM's generation and cache configuration in the labels, empty where it does not say.",
        (
            *ENGINE,
            "generation",
            "block_size",
            "num_gpu_blocks",
            "cache_dtype",
            "enable_prefix_caching",
            "gpu_memory_utilization",
            "kv_cache_max_concurrency",
        ),
        _config,
    ),
    Metric(
        "server_info",
        _G,
        MetricGroup.SIGNAL,
        "1; vLLM's version in the label.",
        (*TARGET, "version"),
        _server_info,
    ),
    Metric(
        "max_model_len_tokens",
        _G,
        MetricGroup.SIGNAL,
        "Longest request that the server takes, by served model name.",
        (*TARGET, "model_name"),
        _max_model_len,
    ),
    # -- derived numbers ------------------------------------------------------------------------------------
    _derived_row(
        "cache_pressure_score",
        "Cache pressure, 0-1, over 1 min: 0.5 x occupancy + 0.3 x queueing + 0.2 x preemption. A full cache with"
        " nothing waiting is at most 0.5.",
    ),
    _derived_row(
        "cache_pressure_occupancy_ratio", "Part of the score: time-weighted 90th percentile of KV usage."
    ),
    _derived_row(
        "cache_pressure_queueing_ratio", "Part of the score: share of time with requests waiting for cache."
    ),
    _derived_row(
        "cache_pressure_preemption_ratio",
        "Part of the score: preemptions / (preemptions + finished requests), 1 from 10 % on.",
    ),
    _derived_row(
        "kv_cache_demand_ratio",
        "KV usage x (running + waiting) / running, 1 min average: the share of the cache that everything admitted"
        " and waiting would need at today's mean footprint. 1.0 is exactly full.",
    ),
    _derived_row(
        "kv_cache_usage_peak_1m_ratio",
        "Highest KV usage of the last minute, every scrape of kvwatch counted.",
    ),
    _derived_row("requests_waiting_peak_1m", "Most requests waiting in the last minute."),
    _derived_row("kv_cache_capacity_tokens", "Tokens that the KV cache holds."),
    _derived_row(
        "prefix_cache_hit_ratio",
        "Hit tokens / queried tokens of the local prefix cache over 5 min. See prefix_cache_hit_ratio_trusted.",
    ),
    _derived_row(
        "external_prefix_cache_hit_ratio",
        "Hit tokens / queried tokens of an external cache (a connector) over 5 min. Since vLLM 0.16 of what the local"
        " cache did not hold, before of the whole prompt.",
    ),
    Metric(
        "prefix_cache_hit_ratio_trusted",
        _G,
        _D,
        "0 if the hit ratio should not be judged by: look-ups ran ahead of prompt tokens, or preempted requests"
        " found their own blocks.",
        ENGINE,
        _each(
            lambda e: (
                None
                if "prefix_cache_hit_ratio" not in e.derived.values
                else float("prefix_cache_hit_ratio" not in e.derived.untrusted)
            )
        ),
    ),
    _derived_row(
        "prompt_tokens_reused_ratio",
        "Prompt tokens whose KV came from a cache, local or external, / all, over 5 min (vLLM 0.16+).",
    ),
    _derived_row("preemptions_per_finished_request", "Preemptions per finished request over 2 min."),
    _derived_row("prompt_tokens_per_second", "Prompt tokens per second over 1 min."),
    _derived_row("generation_tokens_per_second", "Generated tokens per second over 1 min."),
    _derived_row("last_progress_age_seconds", "Time since any counter of progress, or the KV usage, moved."),
    *(
        _percentile_row(
            name, f"Percentiles of {signal.replace('_', ' ').removesuffix(' seconds')} over 5 min."
        )
        for signal, name in LATENCIES.items()
    ),
    *(
        _percentile_row(name, f"Percentiles of {signal.replace('_', ' ')} of requests finished within 1 h.")
        for signal, name in LENGTHS.items()
    ),
    _percentile_row(
        TOTAL_LENGTH,
        "Upper estimate of prompt plus generated tokens within 1 h: the sum of the two percentiles.",
    ),
    # -- GPUs -----------------------------------------------------------------------------------------------
    _gpu_row(
        "gpu_sm_active_ratio",
        "Share of the GPU's processors (SMs) that had work, 0-1, averaged over them and over the exporter's interval"
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
        "Share of time in which anything ran on the GPU, 0-1, however little: 1 proves nothing, a low value does.",
        lambda gpu: gpu.utilization,
    ),
    _gpu_row("gpu_memory_used_bytes", "GPU memory in use.", lambda gpu: gpu.memory_used_bytes),
    _gpu_row("gpu_memory_free_bytes", "GPU memory that is free.", lambda gpu: gpu.memory_free_bytes),
    Metric(
        "gpu_info",
        _G,
        MetricGroup.GPU,
        "1 for each GPU of the target that is read; UUID, name and source (dcgm, nvml) in the labels. The label gpu"
        " is its index, with that of the part behind it for a MIG instance (0/7).",
        (*TARGET, "gpu", "uuid", "name", "source"),
        _gpu_info,
        fleeting=True,
    ),
    Metric(
        "gpu_readings_total",
        _C,
        MetricGroup.GPU,
        "Readings of the GPUs that came with scrapes of the target, by outcome, ok or failed; none where there is"
        " nothing to read.",
        (*TARGET, "outcome"),
        _gpu_readings,
    ),
    # -- direct notification --------------------------------------------------------------------------------
    Metric(
        "notifications_total",
        _C,
        MetricGroup.NOTIFY,
        "Posts of alerts to an Alertmanager by outcome: ok, or the kind of failure; none where none is configured.",
        ("alertmanager", "outcome"),
        deliveries=_notifications,
        fleeting=True,
    ),
    Metric(
        "notify_last_success_timestamp_seconds",
        _G,
        MetricGroup.NOTIFY,
        "When an Alertmanager last took alerts, unix seconds. While nothing fires none are posted.",
        ("alertmanager",),
        deliveries=_notified_at,
        fleeting=True,
    ),
)
