"""What was before a restart: kept to be shown, bounded, and judged by nobody."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.history.before_restart import BeforeRestart
from kvwatch.core.history.window import TRACKED, Sample, Windows
from kvwatch.core.judgement.policy import Policy
from tests.support.pages import Server
from tests.support.watch import Watch

STARTED = 1_700_000_000


def shown(watch: Watch, seconds: float = 1e9) -> list[Sample]:
    """All samples of the engine that are shown."""
    return watch.engine.before_restart.with_current(watch.engine.windows, watch.now - seconds)


def lived(watch: Watch, started: int, seconds: int) -> None:
    """A process that finishes a request a second."""
    server = Server(started=started)
    for _ in range(seconds):
        server.finish(1)
        watch.see(server)


def counted(rows: list[Sample], name: str) -> list[float]:
    return [row.totals[TRACKED.index(name)] or 0.0 for row in rows]


def test_samples_of_both_processes_are_shown_and_nothing_is_counted_between_them() -> None:
    watch = Watch()
    for life in range(3):
        lived(watch, STARTED + 100 * life, 30)
    rows = shown(watch)
    assert [row.t for row in rows] == [1001.0 + n for n in range(90)]
    steps = [after - before for before, after in pairwise(counted(rows, "requests_finished_total"))]
    assert steps == [0.0 if n in {30, 60} else 1.0 for n in range(1, 90)]
    assert watch.derived("generation_tokens_per_second") is not None
    assert len(watch.engine.windows.samples) == 30, "what is judged begins with the new process"


def test_only_as_much_is_kept_as_of_one_process() -> None:
    watch = Watch(Policy(history_s=40.0))
    lived(watch, STARTED, 100)
    for life in range(1, 4):
        lived(watch, STARTED + 100 * life, 15)
        engine = watch.engine
        assert len(engine.before_restart.samples) + len(engine.windows.samples) <= 40 + 2 * 32
        assert shown(watch)[0].t <= watch.now - 38
    lived(watch, STARTED + 900, 60)
    assert (len(watch.engine.before_restart.samples), watch.engine.before_restart.histograms) == (0, ())
    assert counted(shown(watch), "requests_finished_total")[-1] == 99 + 3 * 14 + 59


def test_several_servers_behind_one_address_keep_no_more() -> None:
    watch = Watch(Policy(history_s=40.0))
    servers = [Server(started=STARTED + 500 * n) for n in range(2)]
    for i in range(150):
        servers[i % 2].finish(1)
        watch.see(servers[i % 2])
    assert len(watch.engine.before_restart.samples) <= 40 + 2 * 32
    assert len(watch.engine.before_restart.histograms) == 0
    assert set(counted(shown(watch), "requests_finished_total")) == {0.0}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 200))
def test_from_any_moment_on_it_is_the_same_sequence(lives: list[int], since: int) -> None:
    past, windows, now = BeforeRestart(), Windows(), 0.0
    for seconds in lives:
        past, windows = past.with_process(windows, 1e9), Windows()
        for n in range(seconds):
            now += 1
            totals = (float(n), *[None] * (len(TRACKED) - 1))
            sample = Sample(now, n, None, None, None, 0.0, None, "idle", totals)
            windows = replace(windows, samples=windows.samples.append(sample, 1e9))
    whole = past.with_current(windows, 0.0)
    assert [row.t for row in whole] == [float(n + 1) for n in range(sum(lives))]
    assert past.with_current(windows, float(since)) == [row for row in whole if row.t >= since]
    steps = [after.totals[0] - before.totals[0] for before, after in pairwise(whole)]  # type: ignore[operator]
    assert steps.count(0.0) == max(sum(map(bool, lives)) - 1, 0)
    assert set(steps) <= {0.0, 1.0}
    assert all(row.totals[1] is None for row in whole)


def test_without_a_past_there_is_only_the_present() -> None:
    watch = Watch()
    lived(watch, STARTED, 5)
    assert shown(watch) == watch.engine.windows.samples.rows()
    assert watch.engine.before_restart == BeforeRestart()
