"""Exactly one regime at every sample, and the right one where it can be told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.history.regimes import MEANING, Regime, RegimeInputs, regime_of
from kvwatch.core.history.window import TRACKED, Sample
from kvwatch.core.judgement.derive import demand
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.symptoms import limits_of
from kvwatch.core.model.outcome import Failure
from tests.support.pages import Server
from tests.support.watch import Watch

LIMITS = limits_of({})
NOW = 1000.0

CALM = RegimeInputs(
    usage=0.3,
    running=4,
    waiting=0,
    deferred=0,
    demand=0.3,
    asleep=False,
    cold=False,
    since_progress=0.5,
    since_prompt=0.5,
    busy_for=10,
    stale_gauges=False,
    ceiling=None,
    long_prompt=None,
)


def instant(**changes: float | bool | None) -> RegimeInputs:
    """A calm instant with some things otherwise, and the demand that follows."""
    at = replace(CALM, **changes)  # type: ignore[arg-type]
    return replace(at, demand=demand(at.usage, at.running, at.waiting))


def row(t: float, running: float = 4, waiting: float = 0, usage: float = 0.3) -> Sample:
    wanted = demand(usage, running, waiting)
    return Sample(t, t, usage, running, waiting, 0, wanted, "flowing", (0.0,) * len(TRACKED))


def queue(running: float, waiting: float = 30, usage: float = 0.3, samples: int = 20) -> list[Sample]:
    """A queue that has been the same for a while."""
    return [row(NOW - samples + i, running, waiting, usage) for i in range(samples)]


def regime(at: RegimeInputs, recent: list[Sample] | None = None) -> Regime:
    return regime_of(at, recent or [], LIMITS, NOW)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"running": 0}, Regime.IDLE),
        ({"running": 0, "usage": 0.9}, Regime.IDLE),
        ({"asleep": True, "running": 5}, Regime.IDLE),
        ({}, Regime.FLOWING),
        ({"usage": 0.9499}, Regime.FLOWING),
        ({"usage": 0.95}, Regime.FULL),
        ({"usage": 1.0}, Regime.FULL),
        ({"usage": 1.0, "waiting": 1}, Regime.KV_LIMITED),
        ({"usage": 0.95, "waiting": 1}, Regime.KV_LIMITED),
        ({"usage": 0.3, "waiting": 3}, Regime.PREFILL_LIMITED),
        ({"usage": 0.3, "waiting": 300}, Regime.PREFILL_LIMITED),
        ({"waiting": 4, "deferred": 3}, Regime.DEFERRED),
        ({"usage": 1.0, "waiting": 4, "deferred": 3}, Regime.DEFERRED),
        ({"waiting": 4, "deferred": 2}, Regime.PREFILL_LIMITED),
        ({"since_progress": 30, "busy_for": 30}, Regime.STALLED),
        ({"since_progress": 29.9, "busy_for": 60}, Regime.FLOWING),
        ({"since_progress": 60, "busy_for": 29.9}, Regime.FLOWING),
        ({"since_progress": 60, "busy_for": 60, "running": 0}, Regime.IDLE),
        ({"since_progress": 60, "busy_for": 60, "running": 0, "waiting": 2}, Regime.STALLED),
        ({"since_progress": None, "busy_for": 60}, Regime.FLOWING),
        ({"usage": None}, Regime.UNKNOWN),
        ({"running": None}, Regime.UNKNOWN),
        ({"waiting": None}, Regime.UNKNOWN),
        ({"waiting": None, "running": 0}, Regime.UNKNOWN),
        ({"waiting": 3, "since_prompt": None}, Regime.UNKNOWN),
        ({"waiting": 3, "since_prompt": 31}, Regime.UNKNOWN),
        ({"waiting": 3, "since_progress": 10, "busy_for": 60}, Regime.PREFILL_LIMITED),
        ({"waiting": 3, "since_progress": 10.1, "busy_for": 60}, Regime.UNKNOWN),
    ],
)
def test_the_regime_of_an_instant(changes: dict[str, float | None], expected: Regime) -> None:
    """What one sample says of itself, without a past."""
    assert regime(instant(**changes)) is expected


def test_a_cache_that_was_full_a_moment_ago_is_still_short() -> None:
    """Usage dips when a request ends: within the short memory the queue still waits for the cache."""
    at = instant(usage=0.7, running=10, waiting=10)
    since = [row(NOW - seconds, 10, 10, 0.7) for seconds in (3, 2, 1)]
    assert regime(at, [row(NOW - 14, 10, 10, 0.96), *since]) is Regime.KV_LIMITED
    assert regime(at, [row(NOW - 16, 10, 10, 0.96), *since]) is not Regime.KV_LIMITED


def test_a_slow_beat_remembers_three_samples() -> None:
    """At a scrape every 15 s the memory is of samples: one dip does not end the shortage."""
    at = instant(usage=0.7, running=10, waiting=10)
    assert regime(at, [row(NOW - 30, 10, 10, 0.96), row(NOW - 15, 10, 10, 0.7)]) is Regime.KV_LIMITED


def test_a_cache_without_room_for_one_more_is_short() -> None:
    """Two requests of two fifths each: the third waits for the cache, though that is not full."""
    assert regime(instant(usage=0.8, running=2, waiting=1)) is Regime.KV_LIMITED
    assert regime(instant(usage=0.8, running=20, waiting=6)) is not Regime.KV_LIMITED


def test_preempting_is_short() -> None:
    """Requests lose their blocks: whatever the usage is at the moments one looks, the cache is short."""
    at = instant(usage=0.8, running=20, waiting=20)
    calm, preempted = row(NOW - 4, 20, 20, 0.8), row(NOW - 1, 20, 20, 0.8)
    preempted = preempted._replace(totals=(3.0, *preempted.totals[1:]))
    assert regime(at, [calm._replace(totals=(1.0, *calm.totals[1:])), calm, preempted]) is Regime.KV_LIMITED
    assert regime(at, [calm, calm, row(NOW - 1, 20, 20, 0.8)]) is not Regime.KV_LIMITED


def test_what_prefill_keeps_up_with_is_no_ceiling() -> None:
    """Flat running with next to nothing generated for many prompt tokens: prefill holds the queue back."""
    tokens = {
        "prompt": TRACKED.index("prompt_tokens_total"),
        "generated": TRACKED.index("generation_tokens_total"),
    }

    def rising(prompt: float, generated: float) -> list[Sample]:
        rows = queue(20)
        for i, one in enumerate(rows):
            totals = list(one.totals)
            totals[tokens["prompt"]], totals[tokens["generated"]] = prompt * i, generated * i
            rows[i] = one._replace(totals=tuple(totals), covered=float(i))
        return rows

    at = instant(running=20, waiting=300)
    assert regime(at, rising(48_000, 16)) is Regime.PREFILL_LIMITED
    assert regime(at, rising(48_000, 4_800)) is Regime.SEQUENCE_LIMITED


def test_a_cold_engine_is_given_longer() -> None:
    """Until its first token a request may compile and warm up for minutes."""
    at = instant(since_progress=89, busy_for=89)
    assert regime(at) is Regime.STALLED
    assert regime(replace(at, cold=True)) is not Regime.STALLED
    assert regime(replace(at, cold=True, since_progress=301, busy_for=301)) is Regime.STALLED


def test_a_queue_that_would_fit_does_not_wait_for_the_cache() -> None:
    """Demand below one: whatever the requests wait for, there is room for them."""
    at = instant(usage=0.5, running=10, waiting=9)
    assert regime(at, [row(NOW - 1, 10, 9, 0.99)]) is Regime.PREFILL_LIMITED


def test_no_room_for_a_long_prompt() -> None:
    """What is free holds less than a long prompt and nothing is admitted: it waits for the cache."""
    at = instant(usage=0.8, running=8, waiting=1, long_prompt=0.3, since_prompt=20)
    assert regime(at) is Regime.KV_LIMITED
    assert regime(replace(at, long_prompt=0.1)) is not Regime.KV_LIMITED
    assert regime(replace(at, since_prompt=1)) is not Regime.KV_LIMITED


def test_a_stated_ceiling_is_believed() -> None:
    """Running at the stated --max-num-seqs (within 2 %): they wait for a slot."""
    at = instant(running=4, waiting=30, ceiling=4, usage=0.08)
    assert regime(at) is Regime.SEQUENCE_LIMITED
    assert regime(replace(at, ceiling=8)) is Regime.PREFILL_LIMITED
    assert regime(instant(running=252, waiting=9, ceiling=256)) is Regime.SEQUENCE_LIMITED
    assert regime(instant(running=240, waiting=9, ceiling=256)) is Regime.PREFILL_LIMITED


def test_a_plateau_is_a_ceiling() -> None:
    """While requests wait, running sits where it always sits: they wait for a slot."""
    assert regime(instant(running=4, waiting=30, usage=0.08), queue(4, usage=0.08)) is Regime.SEQUENCE_LIMITED


def test_a_few_samples_are_no_plateau() -> None:
    """Three samples with a queue tell no ceiling."""
    assert regime(instant(running=4, waiting=30), queue(4, samples=2)) is Regime.PREFILL_LIMITED


def test_a_ramp_is_no_plateau() -> None:
    """While running still rises, nothing holds it back but prefill."""
    ramp = [row(NOW - 20 + i, running=1 + i, waiting=30) for i in range(20)]
    assert regime(instant(running=21, waiting=30, usage=0.04), ramp) is Regime.PREFILL_LIMITED


def test_the_full_cache_comes_before_the_plateau() -> None:
    """At a plateau with a full cache it is the cache that they wait for."""
    assert regime(instant(running=4, waiting=30, usage=0.97), queue(4, usage=0.97)) is Regime.KV_LIMITED


number = st.one_of(st.none(), st.floats(0, 1000))
rows = st.lists(
    st.tuples(st.floats(0, 60), st.integers(0, 64), st.integers(0, 99), st.floats(0, 1)), max_size=20
)


@given(
    st.one_of(st.none(), st.floats(0, 1)),
    number,
    number,
    st.floats(0, 1000),
    st.booleans(),
    number,
    number,
    rows,
    st.one_of(st.none(), st.integers(1, 512)),
    st.one_of(st.none(), st.floats(0, 2)),
)
def test_every_instant_has_exactly_one_regime(  # noqa: PLR0917  # one for each thing drawn
    usage: float | None,
    running: float | None,
    waiting: float | None,
    deferred: float,
    asleep: bool,
    since: float | None,
    busy: float | None,
    past: list[tuple[float, int, int, float]],
    ceiling: float | None,
    long_prompt: float | None,
) -> None:
    """Whatever the numbers, there is one answer of the closed set, and waiting regimes only where something waits."""
    at = instant(usage=usage, running=running, waiting=waiting, deferred=deferred, asleep=asleep)
    at = replace(
        at,
        since_progress=since,
        since_prompt=since,
        busy_for=busy or 0.0,
        ceiling=ceiling,
        long_prompt=long_prompt,
    )
    recent = sorted((row(NOW - ago, r, w, u) for ago, r, w, u in past), key=lambda one: one.t)
    found = regime(at, recent)
    assert found in MEANING
    assert found is not Regime.DOWN
    if None in (usage, running, waiting):
        assert found is Regime.UNKNOWN
    elif not waiting and found is not Regime.UNKNOWN:
        assert found in {Regime.IDLE, Regime.FLOWING, Regime.FULL, Regime.STALLED}
    if found is Regime.FULL:
        assert usage is not None
        assert usage >= 0.95


def test_every_regime_has_a_meaning() -> None:
    """The closed set is explained whole."""
    assert set(MEANING) == set(Regime)


# -- through the pipeline -------------------------------------------------------------------------------------------


def test_the_regimes_of_a_day() -> None:
    """Idle, flowing, full, waiting for the cache, deferred, stalled, down, not vLLM: each as it comes."""
    watch, server = Watch(), Server()

    def regime_after(seconds: int, **numbers: float) -> Regime:
        for name, value in numbers.items():
            setattr(server, name, value)
        for _ in range(seconds):
            server.generation_tokens += 10 if server.running else 0
            server.prompt_tokens += 10 if server.running else 0
            watch.see(server)
        return watch.regime

    assert regime_after(3) is Regime.IDLE
    assert regime_after(3, running=4, usage=0.4) is Regime.FLOWING
    assert regime_after(3, usage=0.97) is Regime.FULL
    assert regime_after(3, waiting=5) is Regime.KV_LIMITED
    assert regime_after(20, usage=0.2, waiting=4, deferred=4) is Regime.DEFERRED
    assert regime_after(3, waiting=0, deferred=0, awake=0) is Regime.IDLE
    assert regime_after(3, awake=1) is Regime.FLOWING
    for _ in range(31):
        watch.see(server)
    found = [watch.regime]
    for kind in (Failure.REFUSED, Failure.NOT_VLLM):
        watch.fail(kind)
        found.append(watch.regime)
    assert found == [Regime.STALLED, Regime.DOWN, Regime.UNKNOWN]


def test_a_queue_behind_the_slots_is_told_within_seconds() -> None:
    """Four slots, thirty-six waiting, an empty cache: sequence-limited soon, and kv-limited never."""
    watch, server = Watch(), Server(usage=0.08, running=4, waiting=36)
    for _ in range(30):
        server.finish(2, prompt=40)
        watch.see(server)
        assert watch.regime is not Regime.KV_LIMITED
    assert watch.regime is Regime.SEQUENCE_LIMITED
    stated, quick = Watch(Policy(max_num_seqs=4)), Server(usage=0.08, running=4, waiting=36)
    stated.see(quick)
    assert stated.regime is Regime.SEQUENCE_LIMITED


def test_waiting_alone_is_no_stall_while_anything_moves() -> None:
    """One counter, or the usage, that moves now and then is progress."""
    for moves in ("generation_tokens", "prompt_tokens", "usage", "finished"):
        watch, server = Watch(), Server(usage=0.1, running=1, waiting=1)
        for i in range(90):
            if i % 20 == 0:
                setattr(server, moves, getattr(server, moves) + 0.001)
            watch.see(server)
            assert watch.regime is not Regime.STALLED, moves
