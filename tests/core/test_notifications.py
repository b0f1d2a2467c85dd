"""Which notifications are due, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvwatch.core.export.findings import findings
from kvwatch.core.export.notifications import (
    EXPIRE_AFTER_REPEATS,
    MAX_RESOLVED,
    Ledger,
    Notification,
    NotificationId,
    SentNotification,
    due_notifications,
    next_repeat,
    notification_text,
    prune_ledger,
    record_sent,
)
from kvwatch.core.judgement.lifecycle import Lifecycle, Stage
from kvwatch.core.judgement.state import EngineState, State, initial
from kvwatch.core.judgement.symptoms import Severity
from kvwatch.core.model.snapshot import EngineKey
from tests.support.watch import replayed

WALL = 1_800_000_000.0
REPEAT = 60.0
KEY = EngineKey("t", "m", "0")
THRASHING = NotificationId(KEY, "kv_thrashing", Severity.CRITICAL)
EXHAUSTED = NotificationId(KEY, "kv_exhausted", Severity.WARNING)


def state_of(now: float, lives: dict[str, Lifecycle], target: dict[str, Lifecycle] | None = None) -> State:
    """A state in which these symptoms of the one engine, and these of the target, are where they are."""
    base = replayed("0.32.0--b-healthy", until=5).state
    engine: EngineState = replace(next(iter(base.engines.values())), key=KEY, symptoms=lives)
    return replace(
        initial("t"), now=now, wall=WALL + now, up=True, engines={KEY: engine}, symptoms=target or {}
    )


def life(stage: Stage, since: float = 100.0, held: Stage = Stage.INACTIVE) -> Lifecycle:
    return Lifecycle(
        stage, since, {"requests_waiting": 17.0, "window_seconds": 120.0}, stage_before_unknown=held
    )


FIRING = life(Stage.FIRING)
UNKNOWN = life(Stage.UNKNOWN, 200.0, Stage.FIRING)


@dataclass
class Receiver:
    """An Alertmanager, as the notifier sees it: `tell` looks, and notes what comes of it."""

    ledger: Ledger = field(default_factory=dict)

    def look(self, now: float, *states: State) -> tuple[Notification, ...]:
        self.ledger = prune_ledger(self.ledger, now=now, repeat_s=REPEAT)
        return due_notifications(states, self.ledger, now=now, wall=WALL + now, repeat_s=REPEAT)

    def tell(self, now: float, *states: State, confirmed: bool = True) -> tuple[Notification, ...]:
        notices = self.look(now, *states)
        self.ledger = record_sent(self.ledger, notices, confirmed=confirmed, now=now)
        return notices


def ids(notices: tuple[Notification, ...]) -> list[tuple[NotificationId, bool]]:
    return [(one.id, one.resolved) for one in notices]


def test_what_fires_is_told_once_and_again_at_the_repeat() -> None:
    told = Receiver()
    (notice,) = told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    assert (notice.starts_at, notice.ends_at) == (WALL + 100.0, WALL + 110.0 + EXPIRE_AFTER_REPEATS * REPEAT)
    assert notice.labels["alertname"] == "KVWatchKvThrashing"
    assert told.tell(169.0, state_of(169.0, {"kv_thrashing": FIRING})) == ()
    assert next_repeat(told.ledger, REPEAT) == 170.0
    (again,) = told.tell(170.0, state_of(170.0, {"kv_thrashing": FIRING}))
    assert (again.starts_at, again.ends_at) == (WALL + 100.0, WALL + 170.0 + EXPIRE_AFTER_REPEATS * REPEAT)


def test_nothing_firing_tells_nothing() -> None:
    lives = {"kv_thrashing": life(Stage.PENDING), "kv_exhausted": life(Stage.INACTIVE)}
    assert Receiver().tell(0.0, state_of(0.0, lives), initial("other")) == ()


def test_the_end_is_told_until_it_is_confirmed_and_then_no_more() -> None:
    told, over = Receiver(), state_of(120.0, {"kv_thrashing": life(Stage.INACTIVE, 120.0)})
    told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    (end,) = told.tell(120.0, over, confirmed=False)
    assert (end.resolved, end.ends_at) == (True, WALL + 120.0)
    (again,) = told.tell(125.0, over)
    assert again == end, "it ended when it ended, not when that could be told"
    assert told.tell(126.0, over) == ()
    assert not told.ledger


def test_an_end_that_nobody_heard_of_is_forgotten_when_the_alert_has_timed_out_anyway() -> None:
    told, over = Receiver(), state_of(120.0, {})
    told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    told.tell(120.0, over, confirmed=False)
    assert told.look(110.0 + EXPIRE_AFTER_REPEATS * REPEAT - 1, over)
    assert told.look(110.0 + EXPIRE_AFTER_REPEATS * REPEAT, over) == ()
    assert not told.ledger


def test_what_fires_again_before_its_end_was_heard_of_is_told_as_new() -> None:
    told = Receiver()
    told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    told.tell(120.0, state_of(120.0, {}), confirmed=False)
    (new,) = told.tell(130.0, state_of(130.0, {"kv_thrashing": life(Stage.FIRING, 128.0)}))
    assert (new.resolved, new.starts_at) == (False, WALL + 128.0)


def test_what_was_not_confirmed_is_due_at_once_and_what_fires_is_never_lost() -> None:
    told, burning = Receiver(), {"kv_thrashing": FIRING}
    told.tell(110.0, state_of(110.0, burning), confirmed=False)
    assert ids(told.tell(111.0, state_of(111.0, burning), confirmed=False)) == [(THRASHING, False)]
    (late,) = told.tell(5000.0, state_of(5000.0, burning))
    assert late.starts_at == WALL + 100.0


def test_what_something_accounts_for_is_not_told_until_that_is_over() -> None:
    told = Receiver()
    both = {"kv_thrashing": FIRING, "kv_exhausted": FIRING}
    assert ids(told.tell(110.0, state_of(110.0, both))) == [(THRASHING, False)]
    alone = {"kv_thrashing": life(Stage.INACTIVE, 120.0), "kv_exhausted": FIRING}
    assert ids(told.tell(120.0, state_of(120.0, alone))) == [(EXHAUSTED, False), (THRASHING, True)]


def test_what_comes_to_be_accounted_for_ends_and_says_by_what() -> None:
    told = Receiver()
    told.tell(110.0, state_of(110.0, {"kv_exhausted": FIRING}))
    notices = told.tell(120.0, state_of(120.0, {"kv_thrashing": FIRING, "kv_exhausted": FIRING}))
    assert ids(notices) == [(THRASHING, False), (EXHAUSTED, True)]
    assert (
        notices[1].annotations["description"]
        == "Still firing, now covered by kv_thrashing. Fix kv_thrashing first."
    )


def test_unknown_neither_fires_nor_ends() -> None:
    """What was told is told again as it was while it can't be judged; what was not, is not."""
    told, unknown = Receiver(), {"kv_thrashing": UNKNOWN}
    assert told.tell(105.0, state_of(105.0, unknown)) == ()
    (first,) = told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    assert told.tell(120.0, state_of(120.0, unknown)) == ()
    (held,) = told.tell(170.0, state_of(170.0, unknown))
    assert held == replace(first, ends_at=WALL + 170.0 + EXPIRE_AFTER_REPEATS * REPEAT)
    down = state_of(175.0, unknown, {"target_down": FIRING})
    assert ids(told.tell(175.0, down)) == [
        ((EngineKey("t"), "target_down", Severity.CRITICAL), False),
        (THRASHING, True),
    ]


def test_an_engine_that_is_gone_ends_its_alerts() -> None:
    told = Receiver()
    told.tell(110.0, state_of(110.0, {"kv_thrashing": FIRING}))
    assert ids(told.tell(111.0, replace(initial("t"), now=111.0, wall=WALL))) == [(THRASHING, True)]


def test_ends_that_nobody_hears_of_do_not_pile_up() -> None:
    ended = {
        id_: SentNotification(Notification(id_, WALL, WALL, resolved=True), 100.0)
        for n in range(MAX_RESOLVED + 5)
        for id_ in [NotificationId(EngineKey("t", "m", str(n)), "kv_thrashing", Severity.CRITICAL)]
    }
    left = prune_ledger(ended, now=101.0, repeat_s=REPEAT)
    assert len(left) == MAX_RESOLVED
    assert next(iter(left))[0].engine == "5", "the oldest go"


def test_a_wall_clock_that_jumps_moves_no_alert() -> None:
    told, burning = Receiver(), state_of(110.0, {"kv_thrashing": FIRING})
    (first,) = told.tell(110.0, burning)
    moved = replace(state_of(180.0, {"kv_thrashing": FIRING}), wall=WALL + 9000)
    (again,) = told.tell(180.0, moved)
    assert again.starts_at == first.starts_at


def test_the_texts_say_what_where_by_which_numbers_and_what_to_do() -> None:
    (found, *_) = findings(replayed("0.32.0--c-kv-saturation").state)
    said = notification_text(found)
    assert said["summary"] == "KV cache thrashing (t, tiny-llama, engine 0)"
    meaning, evidence, *advice = said["description"].split("\n\n")
    assert meaning == found.symptom.meaning
    assert evidence.startswith("Evidence: ")
    assert "; preemptions 14" in evidence
    assert "(threshold 0.3)" in evidence
    headings = [section.splitlines()[0] for section in advice]
    assert headings == [
        "Do now, no restart:",
        "With a restart (running requests and the prefix cache are lost):",
        "Do not:",
    ]
    now, later, do_not = (section.splitlines()[1:] for section in advice)
    actions = found.advice.actions
    assert [*now, *later] == [f"{number}. {one.sentence}" for number, one in enumerate(actions, 1)]
    assert len(later) == sum(one.restart for one in actions)
    assert [line.lower() for line in do_not] == [f"{text}.".lower() for _, text in found.advice.do_not]
