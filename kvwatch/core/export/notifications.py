"""Computes the notifications that are due to an Alertmanager, from the states and from what it was sent before.

Theory of operation
    There is no queue. Each time, the firing symptoms are read off the states, so an Alertmanager that was down gets
    the present alerts when it comes back. A `Ledger` per Alertmanager has what was sent and is not yet resolved
    there:

        firing, and not sent, or sent `repeat_s` ago           -> send it, to expire after `EXPIRE_AFTER_REPEATS`
        repeats sent, and now resolved, explained or gone              -> send it as resolved, until the Alertmanager
        confirms sent, and now unknown (its signals are missing)        -> send it again unchanged: unknown never
        resolves sent, resolved, and expired at the Alertmanager        -> forget it

    A symptom that another one explains is not sent while that is so, because it should not page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvwatch.core.export.alert_names import alert_labels
from kvwatch.core.export.finding_text import finding_text
from kvwatch.core.export.findings import Finding, causes_of, explained_by, findings, lifecycles
from kvwatch.core.export.report import wall_offset
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import State
from kvwatch.core.judgement.symptoms import BY_ID, Severity
from kvwatch.core.model.snapshot import EngineKey

EXPIRE_AFTER_REPEATS = 3
"""An alert expires by itself after this many repeats that did not arrive."""
MAX_RESOLVED = 1000
"""Resolved alerts that are kept until an Alertmanager confirms them."""
_MAX_CHARACTERS = 8192


class NotificationId(NamedTuple):
    """One alert: a symptom of an engine or target at one severity.

    The severity is a label, so a change resolves the alert and starts another.
    """

    key: EngineKey
    symptom: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert to send. Times are unix seconds; `ends_at` of a firing one lies in the future."""

    id: NotificationId
    starts_at: float
    ends_at: float
    resolved: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return alert_labels(*self.id)


@dataclass(frozen=True, slots=True)
class SentNotification:
    """The last notification that was sent, whether or not it arrived. `at`: when it was last sent as firing, in
    monotonic seconds."""

    notification: Notification
    at: float
    confirmed: bool = False


Ledger = Mapping[NotificationId, SentNotification]


def due_notifications(
    states: Iterable[State], ledger: Ledger, *, now: float, wall: float, repeat_s: float
) -> tuple[Notification, ...]:
    """What must be sent now (`now` in monotonic, `wall` in unix seconds): firing alerts first, then resolved ones.

    Call `prune_ledger` before.
    """
    due: list[Notification] = []
    firing: set[NotificationId] = set()
    explained: dict[NotificationId, tuple[str, ...]] = {}
    until = wall + EXPIRE_AFTER_REPEATS * repeat_s
    for state in states:
        for id_, sent in _unknown_but_sent(state, ledger):
            firing.add(id_)
            if not sent.confirmed or now - sent.at >= repeat_s:
                due.append(replace(sent.notification, ends_at=until))
        for finding in findings(state):
            id_ = NotificationId(finding.key, finding.symptom.id, finding.severity)
            if finding.explained_by:
                explained[id_] = finding.explained_by
                continue
            firing.add(id_)
            before = ledger.get(id_)
            if before is None or before.notification.resolved:
                starts_at = min(finding.since + (wall_offset(state) or 0.0), wall)
            elif before.confirmed and now - before.at < repeat_s:
                continue
            else:
                starts_at = before.notification.starts_at
            due.append(Notification(id_, starts_at, until, annotations=notification_text(finding)))
    resolved = [
        _resolve(sent.notification, wall, explained.get(id_, ()))
        for id_, sent in ledger.items()
        if id_ not in firing
    ]
    return (*due, *resolved)


def record_sent(
    ledger: Ledger, notifications: Iterable[Notification], *, confirmed: bool, now: float
) -> Ledger:
    """The ledger after these were sent; without `confirmed` they may or may not have arrived."""
    after = dict(ledger)
    for one in notifications:
        before = after.pop(one.id, None)
        if not one.resolved:
            after[one.id] = SentNotification(one, now, confirmed)
        elif before is not None and not confirmed:
            after[one.id] = replace(before, notification=one, confirmed=False)
    return after


def prune_ledger(ledger: Ledger, *, now: float, repeat_s: float) -> Ledger:
    """The ledger without alerts that have expired at the Alertmanager, and with at most `MAX_RESOLVED` resolved
    ones."""
    kept = {id_: sent for id_, sent in ledger.items() if now - sent.at < EXPIRE_AFTER_REPEATS * repeat_s}
    resolved = [id_ for id_, sent in kept.items() if sent.notification.resolved]
    for id_ in resolved[: max(len(resolved) - MAX_RESOLVED, 0)]:
        del kept[id_]
    return kept


def next_repeat(ledger: Ledger, repeat_s: float) -> float | None:
    """When the next alert must be repeated, in monotonic seconds; None without alerts."""
    return min((sent.at + repeat_s for sent in ledger.values() if sent.confirmed), default=None)


def _unknown_but_sent(state: State, ledger: Ledger) -> Iterable[tuple[NotificationId, SentNotification]]:
    """Alerts that were sent as firing and are unknown now, unless another symptom explains them."""
    causes = causes_of(state)
    for key, name, life in lifecycles(state):
        id_ = NotificationId(key, name, life.severity or BY_ID[name].severity)
        sent = ledger.get(id_)
        unknown = life.still_firing and life.stage is Stage.UNKNOWN
        if sent and unknown and not sent.notification.resolved and not explained_by(key, name, causes):
            yield id_, sent


def _resolve(notification: Notification, wall: float, by: tuple[str, ...]) -> Notification:
    """The alert as resolved: now, or at its first resolution."""
    if notification.resolved:
        return notification
    annotations = dict(notification.annotations)
    if by:
        causes = " and ".join(by)
        annotations["description"] = f"Still firing, now covered by {causes}. Fix {causes} first."
    return replace(
        notification,
        ends_at=max(wall, notification.starts_at),
        resolved=True,
        annotations=annotations,
    )


def notification_text(finding: Finding) -> dict[str, str]:
    """The annotations of an alert: what is wrong and where, the evidence, and what to do, in order."""
    text = finding_text(finding)
    evidence = text.evidence_line()
    parts = [
        text.meaning,
        f"Evidence: {evidence}." if evidence else "",
        "\n\n".join("\n".join([heading, *lines]) for heading, lines in text.advice),
    ]
    return {
        "summary": f"{text.title} ({', '.join(text.where)})",
        "description": "\n\n".join(part for part in parts if part)[:_MAX_CHARACTERS],
    }
