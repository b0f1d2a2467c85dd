"""Every recording of a real server, replayed: what was found, against committed transcripts and against the truth.

The transcripts say what changed and when (seconds from the start), and the seconds in each regime. With
`KVWATCH_REGENERATE=1` they are written anew and the run fails. The truth is what the load really was in each phase
of a recording; it does not change when a threshold does.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvwatch.core.dialect.vllm import sample_names
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.symptoms import BY_ID, Severity
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.signals import CORE
from tests.replay.stitched import watched
from tests.support.expected import matches, number
from tests.support.pages import CAPTURES, RECORDINGS, polls
from tests.support.watch import Watch, replayed

NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))
EXPECTED = Path(__file__).parent / "expected"
FACTS: dict[str, Any] = json.loads((CAPTURES / "scenarios.json").read_text(encoding="utf-8"))


@cache
def seen(name: str) -> Watch:
    return replayed(name)


def transcript(name: str) -> dict[str, Any]:
    """A replay as plain data, times to the second."""
    watch = seen(name)
    lines = [
        [round(t.t), t.key.engine or "server", t.symptom, str(t.before), str(t.after)]
        for t in watch.transitions
    ]
    regimes = {
        key.engine: {
            str(regime): number(seconds, 0) for regime, seconds in sorted(engine.regime_seconds.items())
        }
        for key, engine in sorted(watch.state.engines.items())
    }
    return {
        **{f"{i:02d}": line for i, line in enumerate(lines, 1)},
        **{f"regimes of {engine}": seconds for engine, seconds in regimes.items()},
        "scrapes": {kind: n for kind, n in watch.state.outcomes.items() if n},
        "events": [event.kind for event in watch.state.events],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_gives_the_expected_transcript(name: str) -> None:
    """Transitions, seconds in each regime, outcomes and events are as committed."""
    matches(EXPECTED / f"{name}.json", transcript(name))


def test_no_transcript_is_left_over() -> None:
    """Each transcript belongs to a recording."""
    assert sorted(path.stem for path in EXPECTED.glob("*.json")) == NAMES


def narrow(body: str, names: frozenset[str]) -> bytes:
    """A page as vLLM answers when asked for some names only: their samples, and HELP and TYPE of their families."""
    kept: list[str] = []
    family: list[str] = []
    for line in body.splitlines():
        if line.startswith("#"):
            family = [*family, line] if line.startswith("# TYPE") else [line]
        elif line.partition("{")[0].partition(" ")[0] in names:
            kept += [*family, line]
            family = []
    return ("\n".join(kept) + "\n").encode()


def whole_so_far(watch: Watch) -> bool:
    """Whether every engine has shown what a release exposes only with the first request, or its end."""
    needed = (*CORE, "requests_finished_total")
    engines = watch.state.engines.values()
    return bool(engines) and all(name in engine.snapshot.values for engine in engines for name in needed)


@pytest.mark.parametrize("name", NAMES)
def test_narrow_scrapes_judge_as_whole_ones_do(name: str) -> None:
    """Asked for what moves only, between full pages, the same symptoms fire at the same times in the same regimes."""
    watch, began = Watch(now=0.0), None
    for poll in polls(RECORDINGS / f"{name}.jsonl.gz"):
        began = poll["t"] if began is None else began
        now = poll["t"] - began
        outcome: Outcome = ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        if poll["status"] == 200:
            pace = next_pace(watch.state, now)
            asked = frozenset(sample_names(watch.policy.vocabulary, watch.state.exposed, pace))
            fast = pace is Pace.FAST and whole_so_far(watch)
            body = narrow(poll["body"], asked) if fast else poll["body"].encode()
            outcome = Scrape(body, poll["t"], pace=pace, narrowed=fast)
        watch.outcome(outcome, after=now - watch.now)
    whole = seen(name)
    assert [(t.t, t.key, t.symptom, t.after) for t in watch.transitions] == [
        (t.t, t.key, t.symptom, t.after) for t in whole.transitions
    ]
    for key, engine in whole.state.engines.items():
        assert watch.state.engines[key].regime_seconds == pytest.approx(engine.regime_seconds)


# -- the truth --------------------------------------------------------------------------------------------------


@cache
def phases(name: str) -> tuple[tuple[str, Counter[Regime]], ...]:
    """The phases of a recording, each with the regimes found in it, its first seconds left out."""
    watch, began, found = Watch(now=0.0), None, []
    for poll in polls(RECORDINGS / f"{name}.jsonl.gz"):
        began = poll["t"] if began is None else began
        now = poll["t"] - began
        outcome: Outcome = ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        if poll["status"] == 200:
            outcome = Scrape(poll["body"].encode(), poll["t"], pace=next_pace(watch.state, now))
        watch.outcome(outcome, after=now - watch.now)
        found.append((now, [engine.regime for engine in watch.state.engines.values()]))
    return tuple(
        (
            phase["name"],
            Counter(
                regime for t, regimes in found if phase["t0"] + 3 <= t < phase["t1"] for regime in regimes
            ),
        )
        for phase in FACTS[name.replace("--", "/", 1)]["phases"]
    )


CALM = {Regime.IDLE, Regime.FLOWING, Regime.PREFILL_LIMITED}
#: Phase -> the regimes that it may show, the one that must hold for a share of it, and that share.
TRUTH: dict[str, tuple[set[Regime], Regime, float]] = {
    "idle": ({Regime.IDLE, Regime.UNKNOWN}, Regime.IDLE, 0.0),
    "healthy": (CALM, Regime.FLOWING, 0.5),
    "light": (CALM, Regime.FLOWING, 0.6),
    "shared": (CALM, Regime.FLOWING, 0.6),
    "varying": (CALM, Regime.FLOWING, 0.6),
    "long": (CALM, Regime.FLOWING, 0.6),
    "saturated": ({Regime.KV_LIMITED, Regime.FULL}, Regime.KV_LIMITED, 0.9),
    "queue": ({Regime.SEQUENCE_LIMITED, Regime.PREFILL_LIMITED}, Regime.SEQUENCE_LIMITED, 0.9),
    "rejecting": ({Regime.KV_LIMITED, Regime.FLOWING, Regime.IDLE, Regime.FULL}, Regime.KV_LIMITED, 0.3),
    "restart": ({Regime.DOWN}, Regime.DOWN, 0.9),
}
#: Recordings that are not what their phases say: a crash, gauges that this release leaves behind, LoRA slots.
OTHERWISE = {
    ("0.10.2--x-engine-died-while-saturated", "saturated"),
    ("0.10.2--x-engine-died-while-saturated", "idle"),
    ("0.9.2--x-engine-died-metrics-frozen", "saturated"),
    ("0.9.2--x-engine-died-metrics-frozen", "idle"),
    ("0.9.2--b-healthy", "idle"),
    ("0.9.2--c-kv-saturation", "idle"),
    ("0.9.2--e-shared-prefix", "idle"),
    ("0.32.0--k2-lora", "healthy"),
}


@pytest.mark.parametrize("name", NAMES)
def test_regimes_are_what_the_load_was(name: str) -> None:
    """In each phase of a recording the regimes are those of the load that was on: none other, and the main one."""
    for phase, regimes in phases(name):
        if phase not in TRUTH or (name, phase) in OTHERWISE or not regimes:
            continue
        allowed, main, share = TRUTH[phase]
        assert set(regimes) <= allowed, (phase, regimes)
        assert regimes[main] >= share * regimes.total(), (phase, regimes)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.split("--")[1][:2] in {"a-", "b-", "e-", "j2", "k-", "n-"}]
)
def test_no_alarm_where_all_was_well(name: str) -> None:
    """A healthy or idle server fires nothing, but for what is true where the first request takes 8 to 11 s."""
    fired = {t.symptom for t in seen(name).transitions if t.after is Stage.FIRING}
    slow_at_first = name.startswith(("0.11.2", "0.13.0"))
    assert fired == ({"cold_start"} if slow_at_first else set())


#: Pages that stay as they are from some second on: what hangs or died, and what was only left by its clients.
HANGS = {"0.9.2--x-engine-died-metrics-frozen": 57.0, "0.32.0--p-engine-stalled": 38.0}
LEFT = {"0.9.2--b-healthy": 46.0, "0.9.2--e-shared-prefix": 38.0, "0.9.2--c-kv-saturation": 68.0}


@pytest.mark.parametrize("name", [*HANGS, *LEFT])
def test_an_engine_that_hangs_is_told_from_one_that_its_clients_left(name: str) -> None:
    """Frozen pages look alike; the answers that the server gave when it last worked tell them apart."""
    watch = replayed(name, until=(HANGS | LEFT)[name])
    frozen = [
        poll["body"].encode() for poll in polls(RECORDINGS / f"{name}.jsonl.gz") if poll["status"] == 200
    ]
    page = frozen[round(watch.now)]
    for _ in range(120):
        now = watch.now + watch.interval
        watch.outcome(Scrape(page, 1.8e9 + now, pace=next_pace(watch.state, now)))
    assert watch.fired("engine_stalled") is (name in HANGS)
    assert watch.regime is (Regime.STALLED if name in HANGS else Regime.IDLE)
    held = watch.engine.snapshot.number("kv_cache_usage_ratio") or 0.0
    assert watch.fired("kv_usage_stuck") is (name in LEFT and held > 0.05)


def test_an_hour_of_healthy_load_fires_nothing_above_info() -> None:
    """Recordings of healthy load one after another, for an hour: no alarm, nothing unknown, no restart."""
    watch = watched()
    assert sum(watch.engine.regime_seconds.values()) == pytest.approx(3600, abs=2)
    assert watch.engine.regime_seconds[Regime.FLOWING] > 1800
    fired = {t.symptom for t in watch.transitions if t.after is Stage.FIRING}
    assert fired == {"max_model_len_oversized"}  # 4,096 tokens allowed, a few hundred served
    assert BY_ID["max_model_len_oversized"].severity is Severity.INFO
    assert not [t for t in watch.transitions if t.after is Stage.UNKNOWN]
    assert watch.state.restarts == 0


@pytest.mark.parametrize("name", [name for name in NAMES if "c-kv-saturation" in name])
def test_saturation_is_told_on_every_release(name: str) -> None:
    """The same load saturates each release's cache, and its symptom fires soon after."""
    start = next(p["t0"] for p in FACTS[name.replace("--", "/", 1)]["phases"] if p["name"] == "saturated")
    fired = {t.symptom: t.t for t in seen(name).transitions if t.after is Stage.FIRING}
    cache = min(fired[symptom] for symptom in ("kv_thrashing", "kv_exhausted") if symptom in fired)
    assert start < cache < start + 25
    assert "sequence_limited" not in fired
