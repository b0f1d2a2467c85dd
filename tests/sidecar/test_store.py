"""The store: whole states in, whole states out, and rings that stay small."""

import pytest

from kvwatch.core.export.catalogue import NotificationCounts
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import Transition, initial
from kvwatch.core.model.outcome import Failure
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar.store import FAILURES_KEPT, TRANSITIONS_KEPT, FailedScrape, PollStats, Store


def test_states_come_in_the_order_of_the_settings_and_are_replaced_whole() -> None:
    store = Store([initial("b"), initial("a")])
    before = store.state("b")
    after = initial("b")
    store.publish(after)
    assert list(store.states()) == ["b", "a"]
    assert store.state("b") is after
    assert before is not after


def test_a_reader_can_not_change_what_it_sees() -> None:
    with pytest.raises(TypeError):
        Store([initial("a")]).states()["a"] = initial("b")  # type: ignore[index]


def test_counters_add_up_by_target() -> None:
    store = Store([initial("a"), initial("b")])
    store.count("a", polls=1)
    store.count("a", polls=1, missed_ticks=3)
    store.count("b", unexpected_errors=1)
    assert store.poll_stats("a") == PollStats(2, 3, 0)
    assert store.poll_stats("b") == PollStats(0, 0, 1)
    assert store.poll_stats("nobody") == PollStats()


def test_rings_keep_the_latest() -> None:
    store = Store([initial("a")])
    changes = [
        Transition(float(n), 0.0, EngineKey("a"), "s", Stage.INACTIVE, Stage.PENDING, {})
        for n in range(TRANSITIONS_KEPT + 5)
    ]
    store.publish(initial("a"), changes)
    assert store.transitions() == tuple(changes[5:])


def test_failures_of_one_target_do_not_push_out_those_of_another() -> None:
    store = Store([initial("a"), initial("b")])
    store.record_failure(FailedScrape("a", 1.0, Failure.REFUSED, "once", "x" * 5000))
    for n in range(100):
        store.record_failure(FailedScrape("b", 2.0 + n, Failure.TIMEOUT, "again and again"))
    kept = store.failures()
    assert kept[0].target == "a"
    assert len(kept[0].excerpt) == 2048
    assert len(kept) == 1 + FAILURES_KEPT
    assert [failure.wall for failure in kept] == sorted(failure.wall for failure in kept)


def test_what_is_no_longer_in_the_settings_is_forgotten_and_the_rest_is_in_their_order() -> None:
    store = Store([initial("a"), initial("b"), initial("c")])
    for name in "abc":
        store.count(name, polls=3)
        store.record_failure(FailedScrape(name, 1.0, Failure.REFUSED, "refused"))
        store.record_delivery(NotificationCounts(f"am-{name}", {"ok": 1}))
    store.keep(["c", "a"], ["am-b"])
    assert list(store.states()) == ["c", "a"]
    assert store.poll_stats("a").polls == 3
    assert store.poll_stats("b") == PollStats()
    assert {failure.target for failure in store.failures()} == {"a", "c"}
    assert [sent.alertmanager for sent in store.deliveries()] == ["am-b"]


def test_reloads_are_counted_and_the_last_good_one_is_dated() -> None:
    store = Store()
    store.record_start(10.0)
    store.record_reload(good=False, wall=20.0)
    assert (store.reloads().good, store.reloads().last_success) == (False, 10.0)
    store.record_reload(good=True, wall=30.0)
    assert (store.reloads().good, store.reloads().last_success) == (True, 30.0)
    assert store.reloads().outcomes == {"ok": 1, "failed": 1}
