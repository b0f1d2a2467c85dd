"""The one seam: pure, lossless in time, and unmoved by whatever comes in."""

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.core.export import report
from kvwatch.core.export.findings import findings
from kvwatch.core.exposition.series_map import MAX_ENGINES
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State, Transition, initial, with_policy
from kvwatch.core.model.outcome import Failure, Outcome, Pace, Scrape, ScrapeError
from kvwatch.core.model.snapshot import EngineKey
from tests.support.pages import RECORDINGS, Server, polls, real_pages
from tests.support.watch import WALL, Watch

# -- sequences of outcomes --------------------------------------------------------------------------------------


def bodies() -> list[bytes]:
    """Pages of one server in several moods, two engines, broken ones."""
    calm = Server(usage=0.3, running=3, generation_tokens=100)
    full = Server(usage=0.99, running=9, waiting=20, generation_tokens=500, preemptions=4, prompt_tokens=900)
    reset = Server(usage=0.0, generation_tokens=1, prompt_tokens=2, started=1_700_000_999)
    other = Server(engine="1", usage=0.5, running=2, waiting=1, generation_tokens=70)
    lacking = Server(usage=0.4, running=1, generation_tokens=300, without=frozenset({"num_requests_waiting"}))
    lists = [[Server()], [calm], [full], [reset], [calm, other], [lacking], [other]]
    pages = ["".join(one.page for one in servers).encode() for servers in lists]
    return [*pages, b"", b"<html>", b"go_goroutines 1\n", pages[1][:-40]]


BODIES = bodies()
failures = st.sampled_from(list(Failure)).map(lambda kind: ScrapeError(kind, "x", WALL))
scrapes = st.builds(
    Scrape,
    st.sampled_from(BODIES),
    st.just(WALL),
    st.sampled_from([0.001, 0.5]),
    st.sampled_from([1.0, 5.0]),
    st.sampled_from(list(Pace)),
    st.booleans(),
)
outcomes = st.one_of(scrapes, scrapes, failures)
#: Time since the outcome before: usual, none, a gap, and backwards.
moves = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.3, 4.0, 9.9, 10.1, 70.0, 4000.0, -5.0])
stories = st.lists(st.tuples(moves, outcomes), min_size=1, max_size=40)


def told(
    story: list[tuple[float, Outcome]], policy: Policy | None = None
) -> list[tuple[State, tuple[Transition, ...]]]:
    """Every state of a story, with what changed."""
    state, now, found = initial("t", policy), 1000.0, []
    for dt, outcome in story:
        now += dt
        state, changes = advance(state, outcome, now)
        found.append((state, changes))
    return found


@given(stories)
@settings(max_examples=150)
def test_seconds_in_regimes_add_up_to_the_time_that_passed(story: list[tuple[float, Outcome]]) -> None:
    """Gaps, failures, clocks that go back: an engine's seconds are the time since it was first seen, exactly."""
    first: dict[object, float] = {}
    began: float | None = None
    for state, _ in told(story):
        assert state.now is not None
        began = state.now if began is None else began
        for key in set(first) - set(state.engines):
            del first[key]  # it vanished; should it come back, it is a new one
        for key, engine in state.engines.items():
            since = first.setdefault(key, state.now)
            assert sum(engine.regime_seconds.values()) == pytest.approx(state.now - since)
            assert all(seconds >= 0 for seconds in engine.regime_seconds.values())
            assert engine.booked_until == state.now
            marks = [engine.usage_seconds.get(mark, 0.0) for mark in (0.9, 0.95, 0.99)]
            assert marks == sorted(marks, reverse=True)
        if not state.engines and not first:
            assert sum(state.regime_seconds_without_engines.values()) <= state.now - began + 1e-6


@given(stories)
@settings(max_examples=60)
def test_counted_things_never_fall(story: list[tuple[float, Outcome]]) -> None:
    """What kvwatch itself counts only rises, whatever vLLM does."""
    before = initial("t")
    for state, _ in told(story):
        assert all(state.outcomes[kind] >= n for kind, n in before.outcomes.items())
        assert sum(state.outcomes.values()) == sum(before.outcomes.values()) + 1
        assert state.restarts >= before.restarts
        for key, engine in state.engines.items():
            if key in before.engines:
                old = before.engines[key]
                assert all(engine.regime_seconds[r] >= s for r, s in old.regime_seconds.items())
                assert all(engine.usage_seconds[m] >= s for m, s in old.usage_seconds.items())
                assert all(engine.transitions[k] >= n for k, n in old.transitions.items())
                assert sum(engine.usage_tally.counts) >= sum(old.usage_tally.counts)
        before = state


@given(stories)
@settings(max_examples=40)
def test_advancing_is_pure(story: list[tuple[float, Outcome]]) -> None:
    """The same state and outcome give the same again, and the state that was given is as it was."""
    state, now = initial("t"), 1000.0
    for dt, outcome in story:
        now += dt
        before = seen(state)
        after, changes = advance(state, outcome, now)
        again, same = advance(state, outcome, now)
        assert seen(state) == before
        assert seen(again) == seen(after)
        assert same == changes
        state = after


def seen(state: State) -> object:
    """All of a state that anyone can see, as plain data that nothing can change."""
    engines = {
        key: (report.engine(one), one.windows, one.covered, dict(one.totals), one.usage_tally, one.seen_at)
        for key, one in state.engines.items()
    }
    return copy.deepcopy(
        (report.target(state), engines, state.now, state.outcomes, state.full_at, state.failing_since)
    )


@given(stories)
@settings(max_examples=40)
def test_an_interpreter_that_read_other_pages_changes_nothing(story: list[tuple[float, Outcome]]) -> None:
    """Two targets that see the same differ in nothing, though one reader has read other pages before."""
    fresh, used = initial("t"), initial("t")
    for body in BODIES:
        advance(used, Scrape(body, WALL), 0.0)
    now = 1000.0
    for dt, outcome in story:
        now += dt
        fresh, one = advance(fresh, outcome, now)
        used, other = advance(used, outcome, now)
        assert one == other
    assert seen(fresh) == seen(used)


@given(stories)
@settings(max_examples=80)
def test_nothing_fires_or_ends_without_being_known(story: list[tuple[float, Outcome]]) -> None:
    """While a target is not scraped no symptom of an engine begins to fire or ends; it can only become unknown."""
    for state, changes in told(story):
        for change in changes:
            assert change.before is not change.after
            if not state.up and change.key.engine:
                assert change.after is Stage.UNKNOWN
            if change.after is Stage.FIRING:
                assert change.evidence


@given(stories)
@settings(max_examples=40)
def test_transitions_tell_the_whole_story(story: list[tuple[float, Outcome]]) -> None:
    """Applied one after the other, the transitions give the stage that the state shows; each is counted."""
    stages: dict[tuple[EngineKey, str], Stage] = {}
    for state, changes in told(story):
        for change in changes:
            where = (change.key, change.symptom)
            assert stages.get(where, Stage.INACTIVE) is change.before
            stages[where] = change.after
        stages = {
            where: stage
            for where, stage in stages.items()
            if where[0] in state.engines or not where[0].engine
        }
        for key, engine in state.engines.items():
            for name, life in engine.symptoms.items():
                assert stages.get((key, name), Stage.INACTIVE) is life.stage
        firing = {(f.key, f.symptom.id) for f in findings(state)}
        assert firing == {where for where, stage in stages.items() if stage is Stage.FIRING}


# -- replays ---------------------------------------------------------------------------------------------------


def replayed(name: str) -> tuple[State, list[Transition]]:
    state, began = initial("t"), None
    transitions: list[Transition] = []
    for poll in polls(RECORDINGS / f"{name}.jsonl.gz"):
        began = poll["t"] if began is None else began
        outcome: Outcome = (
            Scrape(poll["body"].encode(), poll["t"], pace=next_pace(state, poll["t"] - began))
            if poll["status"] == 200
            else ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        )
        state, changes = advance(state, outcome, poll["t"] - began)
        transitions += changes
    return state, transitions


@pytest.mark.parametrize(
    "name", ["0.32.0--i-restart", "0.32.0--j-data-parallel-2", "0.8.5-v0--c-kv-saturation"]
)
def test_a_replay_is_the_same_every_time(name: str) -> None:
    """Replaying twice gives the same transitions and the same state."""
    one, other = replayed(name), replayed(name)
    assert one[1] == other[1]
    assert seen(one[0]) == seen(other[0])


def test_a_restart_is_one_event_without_a_negative_rate() -> None:
    """A recorded restart: one event, counted once, and no rate below zero or of a lifetime's tokens."""
    state, began, found = initial("t"), None, []
    for poll in polls(RECORDINGS / "0.32.0--i-restart.jsonl.gz"):
        began = poll["t"] if began is None else began
        outcome: Outcome = (
            Scrape(poll["body"].encode(), poll["t"])
            if poll["status"] == 200
            else ScrapeError(Failure.REFUSED, "recorded", poll["t"])
        )
        state, _ = advance(state, outcome, poll["t"] - began)
        for engine in state.engines.values():
            derived = engine.derived
            found += [derived.get(f"{what}_tokens_per_second") for what in ("generation", "prompt")]
    assert state.restarts == 1
    assert [event.kind for event in state.events] == ["engine_appeared", "restart"]
    rates = [rate for rate in found if rate is not None]
    assert min(rates) >= 0
    assert 10 < max(rates) < 3000


# -- restarts ----------------------------------------------------------------------------------------------------


def test_a_start_time_that_moved_is_a_restart() -> None:
    """The process is another one: the engine's history ends, what kvwatch counts goes on."""
    watch, server = Watch(), Server(usage=0.9, running=3, waiting=2)
    for _ in range(20):
        server.finish(2)
        watch.see(server)
    seconds = sum(watch.engine.regime_seconds.values())
    watch.see(Server(started=1_700_000_900))
    assert watch.state.restarts == 1
    assert len(watch.engine.windows.samples) == 1
    assert watch.derived("generation_tokens_per_second") is None
    assert sum(watch.engine.regime_seconds.values()) == seconds + 1
    restart = watch.state.restart
    assert restart is not None
    assert (restart.usage_before, restart.waiting_before) == (0.9, 2)
    assert watch.stage("engine_restarted") is Stage.FIRING
    for _ in range(40):
        watch.see(Server(started=1_700_000_900))
    assert watch.state.restarts == 1


def test_several_counters_that_fall_at_once_are_a_restart() -> None:
    """Without a start time (several API servers expose none) counters tell; one alone is its own reset."""
    watch, server = Watch(), Server(started=None)
    server.finish(50)
    watch.see(server)
    server.generation_tokens = 0
    watch.see(server)
    assert watch.state.restarts == 0
    again = Server(started=None, prompt_tokens=1)
    watch.see(again)
    assert watch.state.restarts == 1
    watch.see(again)
    assert watch.state.restarts == 1


def test_several_servers_behind_one_address_are_no_row_of_restarts() -> None:
    """Two processes that answer in turn: said once, counted once at most, and no rate made of both."""
    watch = Watch()
    servers = [Server(started=1_700_000_000 + 500 * n) for n in range(2)]
    servers[0].finish(50)
    for i in range(100):
        servers[i % 2].finish(1)
        watch.see(servers[i % 2])
        assert watch.derived("generation_tokens_per_second") is None
    assert watch.state.restarts == 1
    assert [event.kind for event in watch.state.events].count("several_servers") == 1
    for _ in range(30):
        servers[0].finish(1)
        watch.see(servers[0])
    assert (watch.derived("generation_tokens_per_second") or 0) > 0


def test_a_restart_while_nobody_could_look() -> None:
    """Down in between, the restart is seen with the first page, and how long nobody looked is said."""
    watch, server = Watch(), Server()
    server.finish(50)
    watch.see(server)
    for _ in range(40):
        watch.fail()
    assert watch.stage("target_down") is Stage.FIRING
    watch.see(Server(started=1_700_000_500))
    assert watch.stage("target_down") is Stage.INACTIVE
    assert watch.state.restart is not None
    assert watch.state.restart.unseen_s == 41


def test_an_outage_without_a_restart_is_none() -> None:
    """The same process after an outage: no restart, and no rate across the gap."""
    watch, server = Watch(), Server(running=1)
    server.finish(5)
    watch.see(server)
    for _ in range(30):
        watch.fail()
    server.generation_tokens += 99_999
    watch.see(server)
    assert watch.state.restarts == 0
    server.generation_tokens += 7
    watch.see(server)
    assert watch.derived("generation_tokens_per_second") == 7


def test_nothing_of_a_dead_process_is_shown_after_a_restart() -> None:
    """A narrow page that shows the restart is not completed by what the old process said."""
    watch, old = Watch(), Server()
    old.finish(500)
    watch.see(old)
    narrow = narrowed(Server(started=1_700_000_900))
    watch.outcome(Scrape(narrow, WALL, 0.001, 1.0, Pace.FAST, narrowed=True))
    assert watch.state.restarts == 1
    ttft = watch.engine.snapshot.histogram("time_to_first_token_seconds")
    assert ttft is None or ttft.count == 0
    assert next_pace(watch.state, watch.now + 1) is Pace.FULL


# -- narrow pages --------------------------------------------------------------------------------------------


def narrowed(server: Server) -> bytes:
    """What a narrow fast scrape brings: no buckets, no information families."""
    lines = server.page.splitlines()
    left_out = ("_bucket", "cache_config", "engine_sleep_state")
    return ("\n".join(line for line in lines if not any(word in line for word in left_out)) + "\n").encode()


def test_a_narrow_page_keeps_what_was_not_asked_for() -> None:
    """Buckets and the configuration stay those of the last full page; gauges and counters are the new ones."""
    watch, server = Watch(), Server(usage=0.2, running=1)
    server.finish(40)
    watch.see(server)
    server.usage, server.generation_tokens = 0.6, 9999
    watch.outcome(Scrape(narrowed(server), WALL, 0.001, 1.0, Pace.FAST, narrowed=True))
    snapshot = watch.engine.snapshot
    assert snapshot.number("kv_cache_usage_ratio") == 0.6
    assert snapshot.number("generation_tokens_total") == 9999
    assert snapshot.config.num_gpu_blocks == 1000
    ttft = snapshot.histogram("time_to_first_token_seconds")
    assert ttft is not None
    assert ttft.bounds
    assert snapshot.part("engine_sleep_state", "awake") == 1
    assert watch.derived("kv_cache_capacity_tokens") == 16_000


def test_a_narrow_page_does_not_revive_what_is_gone() -> None:
    """A gauge that was asked for and is no longer there is missing, though the last full page had it."""
    watch, server = Watch(), Server(usage=0.2, running=1)
    server.finish(1)
    watch.see(server)
    server.without = frozenset({"num_requests_waiting"})
    watch.outcome(Scrape(narrowed(server), WALL, 0.001, 1.0, Pace.FAST, narrowed=True))
    assert watch.engine.snapshot.number("requests_waiting") is None
    assert watch.regime is Regime.UNKNOWN


def test_full_pages_are_asked_for_at_their_pace() -> None:
    """Everything at first, after a failure, and every `full_interval_s`; else only what moves."""
    watch, server = Watch(Policy(full_interval_s=15)), Server()
    assert next_pace(watch.state, 1000.0) is Pace.FULL
    watch.see(server)
    paces = []
    for _ in range(30):
        pace = next_pace(watch.state, watch.now + 1)
        watch.see(server, pace=pace)
        paces.append(pace)
    assert paces.count(Pace.FULL) == 2
    watch.fail()
    assert next_pace(watch.state, watch.now + 1) is Pace.FULL


# -- engines come and go ------------------------------------------------------------------------------------


def test_engines_are_kept_apart() -> None:
    """Two ranks: each has its own regime, numbers and symptoms."""
    watch = Watch()
    busy, calm = (
        Server(engine="0", usage=0.99, running=5, waiting=9),
        Server(engine="1", usage=0.1, running=1),
    )
    for _ in range(45):
        busy.finish(1)
        calm.finish(1)
        watch.see(busy, calm)
    by_engine = {key.engine: engine for key, engine in watch.state.engines.items()}
    assert by_engine["0"].regime is Regime.KV_LIMITED
    assert by_engine["1"].regime is Regime.FLOWING
    assert {f.key.engine for f in findings(watch.state) if f.symptom.id == "kv_exhausted"} == {"0"}


def test_an_engine_that_left_the_page_has_no_values() -> None:
    """A rank that vanished shows nothing old, is unknown, and is forgotten after a while."""
    watch = Watch(Policy(history_s=60))
    one, other = Server(engine="0", running=1), Server(engine="1", running=1)
    watch.see(one, other)
    watch.see(one)
    gone = next(engine for key, engine in watch.state.engines.items() if key.engine == "1")
    assert not gone.snapshot.values
    assert gone.regime is Regime.UNKNOWN
    for _ in range(70):
        watch.see(one)
    assert [key.engine for key in watch.state.engines] == ["0"]
    assert [event.kind for event in watch.state.events][-1] == "engine_vanished"


def test_events_are_bounded() -> None:
    """However often engines come and go, so many events are kept."""
    watch = Watch(Policy(max_events=10, history_s=1))
    for i in range(50):
        watch.see(Server(engine=str(i)), after=5)
    assert len(watch.state.events) == 10


def test_a_clock_that_goes_back_stands_still() -> None:
    """Monotonic time can't go back; if it is said to, no time has passed."""
    watch, server = Watch(), Server(running=1)
    watch.see(server)
    before = watch.state.now
    watch.see(server, after=-30)
    assert watch.state.now == before
    assert sum(watch.engine.regime_seconds.values()) == 0


def test_an_unknown_symptom_or_threshold_is_refused_at_the_start() -> None:
    """A threshold that does not exist, or is out of range, is an error that names it."""
    with pytest.raises(ValueError, match=r"kv_exhausted\.shrae"):
        initial("t", Policy(thresholds={"kv_exhausted.shrae": 0.5}))
    with pytest.raises(ValueError, match="outside"):
        initial("t", Policy(thresholds={"kv_exhausted.share": 7}))


def test_a_disabled_symptom_is_not_judged() -> None:
    """What the operator switched off is neither judged nor shown."""
    watch = Watch(Policy(disabled=frozenset({"kv_exhausted", "target_down"})))
    watch.see(Server())
    assert "kv_exhausted" not in watch.engine.symptoms
    assert "target_down" not in watch.state.symptoms


# -- ten thousand pages -----------------------------------------------------------------------------------------


def mangled(body: bytes, rng: random.Random) -> bytes:
    """A page with a few things wrong."""
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body = body[:at]
            case 1:
                body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
            case 2:
                lines = body.split(b"\n")
                rng.shuffle(lines)
                body = b"\n".join(lines) + b"\n"
            case 3:
                lines = body.split(b"\n")
                n = rng.randrange(len(lines))
                body = b"\n".join([*lines[:n], *lines[n : n + 3], *lines[n:]])
            case 4:
                number = rng.choice([b" 1e308", b" -1", b" NaN", b" +Inf", b" 0", b" 5e-324"])
                lines = body.split(b"\n")
                n = rng.randrange(len(lines))
                lines[n] = lines[n].rpartition(b" ")[0] + number
                body = b"\n".join(lines)
            case _:
                body = rng.randbytes(rng.randrange(60)) + body
    return body


def test_ten_thousand_pages_without_an_exception() -> None:
    """Mangled, random, real: whatever comes, at whatever time, `advance` returns and its report is plain data."""
    rng = random.Random(20_240_229)  # pages, no secrets
    real = [page.body for page in real_pages()][::9]
    state, now = initial("t"), 0.0
    for i in range(10_000):
        if i % 150 == 0:
            state = initial(
                "t", Policy(full_interval_s=rng.choice([1, 15]), history_s=rng.choice([5.0, 600.0]))
            )
        now += rng.choice([1, 1, 1, 0, 0.2, 3, 12, 400, -3])
        roll = rng.random()
        body = rng.choice(BODIES) if roll < 0.85 else rng.choice(real) if roll < 0.9 else rng.randbytes(80)
        outcome: Outcome = Scrape(
            mangled(body, rng), WALL + now, 0.01, 1.0, rng.choice(list(Pace)), rng.random() < 0.3
        )
        if roll > 0.95:
            outcome = ScrapeError(rng.choice(list(Failure)), "x", WALL + now)
        state, _ = advance(state, outcome, now)
        for engine in state.engines.values():
            assert all(number >= 0 for number in engine.derived.values.values())
        if i % 50 == 0:
            report.json_safe(report.target(state))


# -- what is not there, and what comes seldom ------------------------------------------------------------------


def test_counters_that_vanish_do_not_stand_still() -> None:
    """Without a counter of progress nobody can say that an engine is stalled."""
    watch, server = Watch(), Server(usage=0.5, running=4, waiting=2)
    for i in range(40):
        server.usage = 0.5 + i % 2 / 100
        server.finish(1)
        watch.see(server)
    gone = ("generation_tokens", "prompt_tokens", "iteration_tokens", "request_success")
    for i in range(60):
        server.usage = 0.5 + i % 2 / 100
        page = "".join(
            line for line in server.page.splitlines(keepends=True) if not any(name in line for name in gone)
        )
        watch.outcome(Scrape(page.encode(), WALL))
    assert watch.regime is not Regime.STALLED
    assert watch.derived("last_progress_age_seconds") is None


def test_what_has_not_moved_across_a_gap_has_not_moved() -> None:
    """A hung engine that is seldom seen is stalled all the same, and its age of progress goes on."""
    watch, server = Watch(), Server(usage=0.99, running=4, waiting=50)
    server.finish(5)
    watch.see(server)
    for _ in range(12):
        for _ in range(4):
            watch.fail(Failure.TIMEOUT, after=3)
        watch.see(server, after=3)
    assert watch.regime is Regime.STALLED
    assert (watch.derived("last_progress_age_seconds") or 0) > 150


def test_a_server_that_hardly_ever_answers_is_down() -> None:
    """One answer in twenty is no service: the symptom fires though every streak of failures is short."""
    watch, server = Watch(), Server(running=1)
    for i in range(600):
        if i % 20 == 0:
            server.finish(1)
            watch.see(server)
        else:
            watch.fail(Failure.TIMEOUT)
    assert watch.stage("target_down") is Stage.FIRING
    for _ in range(120):
        server.finish(1)
        watch.see(server)
    assert watch.stage("target_down") is Stage.INACTIVE


def test_one_histogram_that_begins_anew_is_no_restart() -> None:
    """Its count and its sum fall together: still one signal."""
    watch, server = Watch(), Server(started=None)
    server.finish(50)
    watch.see(server)
    before = server.page
    lines = [
        line.rpartition(" ")[0] + " 0.0" if line.startswith("vllm:request_prompt_tokens_") else line
        for line in before.splitlines()
    ]
    watch.outcome(Scrape(("\n".join(lines) + "\n").encode(), WALL))
    assert watch.state.restarts == 0


def test_waking_up_is_no_stall() -> None:
    """Gauges frozen in sleep do not count against the engine that wakes up."""
    watch, server = Watch(), Server(usage=0.5, running=2)
    server.finish(1)
    watch.see(server)
    server.awake = 0
    for _ in range(100):
        watch.see(server)
    server.awake = 1
    for _ in range(20):
        watch.see(server)
    assert watch.regime is not Regime.STALLED


def test_engines_are_bounded() -> None:
    """Engines that come and go, as replicas behind a relay do, push each other out in the end."""
    watch = Watch()
    for i in range(40):
        watch.see(*(Server(engine=str(10 * i + j)) for j in range(10)))
    assert len(watch.state.engines) == 256
    assert {str(n) for n in range(390, 400)} <= {key.engine for key in watch.state.engines}


_RUNNING = "vllm:num_requests_running"
_BUCKETS = "vllm:time_to_first_token_seconds_bucket"


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        ([f'{_RUNNING}{{engine="e{n}"}} 1' for n in range(MAX_ENGINES + 44)], 45),
        ([f'{_RUNNING}{{model_name="{"m" * 1001}"}} 1'], 1),
        ([f'{_RUNNING}{{engine="0",model_name="{"m" * 1000}"}} 1'], 0),
        ([f'{_BUCKETS}{{le="{n}.5",engine="e"}} 1' for n in range(300)], 100),
        ([f'vllm:request_success_total{{engine="e",finished_reason="r{n}"}} 1' for n in range(40)], 8),
        ([f'vllm:cache_config_info{{engine="c{n}",block_size="16"}} 1' for n in range(300)], 45),
    ],
    ids=["engines", "a long name", "a name just as long", "buckets", "label values", "configurations"],
)
def test_what_is_beyond_the_limits_is_counted_and_not_read(lines: list[str], left_out: int) -> None:
    """Beside it the server's own engine is read as ever."""
    watch, server = Watch(), Server(usage=0.5, running=2)
    body = (server.page + "\n".join(lines) + "\n").encode()
    state = watch.outcome(Scrape(body, WALL))
    assert state.left_out == left_out
    assert len(state.engines) <= MAX_ENGINES
    own = next(engine for key, engine in state.engines.items() if key.engine == "0")
    assert own.snapshot.number("requests_running") in {2, 1}
    watch.see(server)
    assert watch.state.left_out == 0


def test_another_policy_keeps_what_was_seen_and_counted() -> None:
    """What is no longer judged is gone with the next outcome, and other thresholds count from there on."""
    watch, server = Watch(), Server(usage=0.99, running=5, waiting=9)
    for _ in range(45):
        server.finish(1)
        watch.see(server)
    before = watch.state
    assert "kv_exhausted" in {finding.symptom.id for finding in findings(before)}
    policy = Policy(disabled=frozenset({"kv_exhausted"}), thresholds={"kv_near_full.for": 7})
    watch.state = with_policy(before, policy)
    watch.see(server)
    after = watch.state
    assert "kv_exhausted" not in {finding.symptom.id for finding in findings(after)}
    assert after.limits["kv_near_full.for"] == 7
    (key,) = after.engines
    assert after.engines[key].regime_seconds[Regime.KV_LIMITED] > 40
    assert len(after.engines[key].windows.samples) == 46
    with pytest.raises(ValueError, match="no_such"):
        with_policy(before, Policy(thresholds={"no_such": 1}))
