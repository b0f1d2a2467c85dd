"""What an Alertmanager must be told now, from what fires and what it was told before.

Theory of operation
    Nothing is queued. What fires is read off the states each time, so an Alertmanager that was away gets what fires
    now, whenever it comes back. A `Ledger` per Alertmanager remembers what it was told and did not hear the end of:

        fires, and not told, or told `repeat_s` ago        -> told, as firing until `LASTS` times the repeat
        told, and over, explained, or gone                 -> told once more, as resolved, until it confirms that
        told, and its signals are missing (unknown)        -> told again as it was: unknown never resolves
        told, over, and last told longer ago than it lasts -> forgotten: it has timed out there by itself

    What another symptom accounts for is told of only when that is no longer so: it should not page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvwatch.core.export.alert_names import alert_labels
from kvwatch.core.export.findings import Finding, causes_of, explained_by, findings, lifecycles
from kvwatch.core.export.report import wall_offset
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import State
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.text.evidence import format_evidence, split_thresholds

LASTS = 3
"""After how many repeats that did not come an alert is over by itself."""
MOST_ENDED = 1000
"""How many alerts that are over are kept until an Alertmanager confirms."""
_MOST_CHARACTERS = 8192

Id = tuple[EngineKey, str]
"""Whose symptom, and which."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert as it is told. Times in unix seconds; `ends_at` of one that fires lies in the future."""

    id: Id
    starts_at: float
    ends_at: float
    resolved: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return alert_labels(*self.id)


@dataclass(frozen=True, slots=True)
class SentNotification:
    """What an Alertmanager was told last, or may have been. `at`: when it was last told that it fires, monotonic."""

    notice: Notification
    at: float
    confirmed: bool = False


Ledger = Mapping[Id, SentNotification]


def due_notifications(
    states: Iterable[State], ledger: Ledger, *, now: float, wall: float, repeat_s: float
) -> tuple[Notification, ...]:
    """What must be told now (`now` monotonic, `wall` unix seconds): what fires first, then what is over.

    `ledger` as `kept` leaves it.
    """
    tell: list[Notification] = []
    going_on: set[Id] = set()
    explained: dict[Id, tuple[str, ...]] = {}
    until = wall + LASTS * repeat_s
    for state in states:
        for one, told in _held(state, ledger):
            going_on.add(one)
            if not told.confirmed or now - told.at >= repeat_s:
                tell.append(replace(told.notice, ends_at=until))
        for finding in findings(state):
            one = (finding.key, finding.symptom.id)
            if finding.explained_by:
                explained[one] = finding.explained_by
                continue
            going_on.add(one)
            before = ledger.get(one)
            if before is None or before.notice.resolved:
                starts_at = min(finding.since + (wall_offset(state) or 0.0), wall)
            elif before.confirmed and now - before.at < repeat_s:
                continue
            else:
                starts_at = before.notice.starts_at
            tell.append(Notification(one, starts_at, until, annotations=notification_text(finding)))
    over = [
        _ended(told.notice, wall, explained.get(one, ()))
        for one, told in ledger.items()
        if one not in going_on
    ]
    return (*tell, *over)


def record_sent(ledger: Ledger, notices: Iterable[Notification], *, confirmed: bool, now: float) -> Ledger:
    """The ledger after these were told; unless `confirmed` nobody knows whether they arrived."""
    after = dict(ledger)
    for notice in notices:
        before = after.pop(notice.id, None)
        if not notice.resolved:
            after[notice.id] = SentNotification(notice, now, confirmed)
        elif before is not None and not confirmed:
            after[notice.id] = replace(before, notice=notice, confirmed=False)
    return after


def prune_ledger(ledger: Ledger, *, now: float, repeat_s: float) -> Ledger:
    """The ledger without what has timed out at the Alertmanager by itself, and never too long."""
    alive = {one: told for one, told in ledger.items() if now - told.at < LASTS * repeat_s}
    ended = [one for one, told in alive.items() if told.notice.resolved]
    for one in ended[: max(len(ended) - MOST_ENDED, 0)]:
        del alive[one]
    return alive


def next_repeat(ledger: Ledger, repeat_s: float) -> float | None:
    """When the next alert must be told again, monotonic; None if none goes on."""
    return min((told.at + repeat_s for told in ledger.values() if told.confirmed), default=None)


def _held(state: State, ledger: Ledger) -> Iterable[tuple[Id, SentNotification]]:
    """What was told of as firing and can't be judged at present, unless something accounts for it."""
    causes = causes_of(state)
    for key, name, life in lifecycles(state):
        told = ledger.get((key, name))
        unseen = life.goes_on and life.stage is Stage.UNKNOWN
        if told is not None and unseen and not told.notice.resolved and not explained_by(key, name, causes):
            yield (key, name), told


def _ended(notice: Notification, wall: float, by: tuple[str, ...]) -> Notification:
    """The end of an alert: now, or when it was first told of."""
    if notice.resolved:
        return notice
    said = dict(notice.annotations)
    if by:
        said["description"] = (
            f"It goes on, but is no longer told of by itself: {', '.join(by)} accounts for it. Act on that."
        )
    return replace(notice, ends_at=max(wall, notice.starts_at), resolved=True, annotations=said)


def notification_text(finding: Finding) -> dict[str, str]:
    """The texts of an alert: what is wrong and where, the numbers judged, and what to do, in order."""
    key = finding.key
    where = [key.target, key.model_name, f"engine {key.engine}" if key.engine else ""]
    judged, limits = split_thresholds(finding.evidence)
    evidence = [_words("Evidence", judged), _words("Thresholds", limits)]
    actions = [f"{n}. {text}" for n, text in enumerate(finding.actions, 1)]
    parts = [
        finding.symptom.meaning,
        " ".join(sentence for sentence in evidence if sentence),
        "\n".join(["What to do, in this order:", *actions]) if actions else "",
    ]
    return {
        "summary": f"{finding.symptom.title} ({', '.join(word for word in where if word)})",
        "description": "\n\n".join(part for part in parts if part)[:_MOST_CHARACTERS],
    }


def _words(title: str, found: Mapping[str, object]) -> str:
    """Names and values as a sentence; empty without any."""
    said = "; ".join(format_evidence(name, value) for name, value in found.items())
    return f"{title}: {said}." if said else ""
