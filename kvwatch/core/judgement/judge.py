"""Judges every symptom of a state and finds the transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvwatch.core.judgement.advice.choose import Action, Advice, choose
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.lifecycle import Lifecycle, Stage, next_lifecycle, with_advice, with_published
from kvwatch.core.judgement.state import EngineState, State, Transition
from kvwatch.core.judgement.symptoms import (
    SYMPTOMS,
    EngineView,
    Judgement,
    Scope,
    Symptom,
    TargetView,
    Verdict,
)
from kvwatch.core.judgement.symptoms.situations import has_room, situation_of
from kvwatch.core.model.snapshot import EngineKey


def judge_symptoms(state: State, now: float) -> State:
    """The state with every symptom judged at `now`."""
    rows = [row for row in SYMPTOMS if row.id not in state.policy.disabled]
    per_engine = [row for row in rows if row.scope is Scope.ENGINE]
    age_s = _server_age(state, now)
    views = {key: _view(state, engine, now, age_s) for key, engine in state.engines.items()}
    engines = {
        key: replace(engine, symptoms=_engine_symptoms(state, engine, views, per_engine, now))
        for key, engine in state.engines.items()
    }
    target_view = TargetView(
        engines={
            key: views[key] for key, e in state.engines.items() if e.seen_at == state.good_at or not state.up
        },
        ever_up=state.good_at is not None,
        configured=state.configured,
        failure=state.failure,
        detail=state.last_error.detail if state.last_error else "",
        failing_share=state.failing_share,
        last_failure=state.last_error.kind if state.last_error else None,
        failing_for=now - state.failing_since if state.failing_since is not None else 0.0,
        unknown_families=state.unknown_families,
        rejections=state.server.parts("admission_rejections_total") if state.server else None,
        gpu=state.gpu,
        restart=state.restart,
        log=state.log,
        now=now,
        limits=state.limits,
    )
    symptoms = {
        row.id: _lifecycle_of(
            state, row, state.symptoms.get(row.id), row.judge(target_view), now, views=views
        )
        for row in rows
        if row.scope is Scope.TARGET
    }
    return replace(state, engines=engines, symptoms=symptoms)


def _view(state: State, engine: EngineState, now: float, age_s: float | None) -> EngineView:
    return EngineView(
        snapshot=engine.snapshot,
        derived=engine.derived,
        regime=engine.regime,
        windows=engine.windows,
        integrals=engine.integrals,
        now=now,
        limits=state.limits,
        scraped=bool(state.up),
        max_model_len=max_model_len(state, engine),
        ceiling=state.policy.max_num_seqs,
        age_s=age_s,
        stale_gauges=engine.stale_gauges,
        lifetime=engine.raw_histograms,
        firing=frozenset(name for name, life in engine.symptoms.items() if life.stage is Stage.FIRING),
    )


def max_model_len(state: State, engine: EngineState) -> float | None:
    """Longest request that the server accepts, in tokens: from /v1/models, else from its capacity."""
    lengths = (state.facts.max_model_len if state.facts else None) or {}
    length = lengths.get(engine.key.model_name)
    if length is None and len(set(lengths.values())) == 1:
        length = next(iter(lengths.values()))  # other names of the same model
    return engine.snapshot.config.max_model_len if length is None else float(length)


def _server_age(state: State, now: float) -> float | None:
    """Seconds since the server started; None if unknown."""
    started = state.server.number("engine_start_time_seconds") if state.server else None
    if started is not None and state.wall is not None:
        return max(state.wall - started, 0.0)
    return None if state.restart is None else now - state.restart.at


def _engine_symptoms(
    state: State,
    engine: EngineState,
    views: Mapping[EngineKey, EngineView],
    rows: Iterable[Symptom],
    now: float,
) -> dict[str, Lifecycle]:
    never_used = Judgement(Verdict.CLEAR, {"detail": "no request was served yet"})
    return {
        row.id: _lifecycle_of(
            state,
            row,
            engine.symptoms.get(row.id),
            never_used if state.up and engine.snapshot.never_used else row.judge(views[engine.key]),
            now,
            views=views,
            key=engine.key,
        )
        for row in rows
    }


def _lifecycle_of(
    state: State,
    row: Symptom,
    before: Lifecycle | None,
    judgement: Judgement,
    now: float,
    *,
    views: Mapping[EngineKey, EngineView],
    key: EngineKey | None = None,
) -> Lifecycle:
    after = next_lifecycle(
        before or Lifecycle(),
        judgement,
        now,
        for_s=state.limits[f"{row.id}.for"],
        keep_s=state.limits[f"{row.id}.keep"],
        grace_s=state.policy.unknown_grace_s,
    )
    if not after.still_firing:
        return after
    after = with_published(after, now)
    return with_advice(after, now, lambda: _advice(state, row, after, views, key))


def _advice(
    state: State,
    row: Symptom,
    life: Lifecycle,
    views: Mapping[EngineKey, EngineView],
    key: EngineKey | None,
) -> Advice:
    """What to do about a firing symptom: what the server's log says, else the row's levers that apply."""
    cause = row.log_cause(state.log)
    if cause is not None and cause.actions:
        return Advice(tuple(Action("log", text) for text in cause.actions))
    view = views.get(key) if key is not None else next(iter(views.values()), None)
    if view is None:
        situation = Situation(row.id, life.evidence)
    else:
        others = (other for name, other in views.items() if name != key)
        situation = situation_of(row.id, life.evidence, view, room_elsewhere=any(map(has_room, others)))
    return choose(row.levers, row.do_not, situation)


def count_transitions(before: State, after: State, now: float) -> tuple[State, tuple[Transition, ...]]:
    """Counts the transitions from `before` to `after`, and returns them."""
    found: list[Transition] = []
    engines = {}
    wall = after.wall or 0.0
    for key, engine in after.engines.items():
        old = before.engines[key].symptoms if key in before.engines else {}
        changes = _changes(key, old, engine.symptoms, now, wall)
        engines[key] = replace(engine, transitions=_tally(engine.transitions, changes)) if changes else engine
        found += changes
    changes = _changes(EngineKey(after.target), before.symptoms, after.symptoms, now, wall)
    found += changes
    after = replace(after, engines=engines, transitions=_tally(after.transitions, changes))
    return after, tuple(found)


def _changes(
    key: EngineKey, old: Mapping[str, Lifecycle], new: Mapping[str, Lifecycle], now: float, wall: float
) -> list[Transition]:
    changes = []
    for symptom, lifecycle in new.items():
        stage = old[symptom].stage if symptom in old else Stage.INACTIVE
        if stage is not lifecycle.stage:
            found = Transition(
                now, wall, key, symptom, stage, lifecycle.stage, lifecycle.evidence, lifecycle.reason
            )
            changes.append(found)
    return changes


def _tally(
    counts: Mapping[tuple[str, Stage], int], changes: Iterable[Transition]
) -> Mapping[tuple[str, Stage], int]:
    after = dict(counts)
    for change in changes:
        entered = (change.symptom, change.after)
        after[entered] = after.get(entered, 0) + 1
    return after
