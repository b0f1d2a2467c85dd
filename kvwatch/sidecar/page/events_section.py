"""What happened lately: events, and every symptom that began or ended to fire."""

from __future__ import annotations

from collections.abc import Iterator

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.state import Event, Transition
from kvwatch.sidecar.page.markup import e, moment, place, since
from kvwatch.sidecar.store import Store
from kvwatch.text.evidence import format_evidence

_MOST = 20


def happened(store: Store, now: float) -> Iterator[str]:
    """The latest first. `now` is monotonic."""
    changes = [one for one in store.transitions() if Stage.FIRING in {one.before, one.after}]
    events = [one for state in store.states().values() for one in state.events]
    both: list[Event | Transition] = sorted([*events, *changes], key=lambda one: -one.t)
    yield '<section aria-labelledby="events"><h2 id="events">What happened</h2>'
    yield '<ul class="events">' if both else "<p>Nothing yet.</p>"
    for one in both[:_MOST]:
        words = _event(one) if isinstance(one, Event) else _change(one)
        when = f"{moment(one.wall)} <small>{e(since(one.t, now))} ago</small>"
        yield f"<li>{when} {words} <small>{place(one.key)}</small></li>"
    yield "</ul>" if both else ""
    if len(both) > _MOST:
        yield f'<p><a href="/api/v1/events">All {len(both)} and more as JSON</a></p>'
    yield "</section>"


def _event(one: Event) -> str:
    facts = ", ".join(format_evidence(name, value) for name, value in one.detail.items() if value is not None)
    return e(one.kind.replace("_", " ") + (f" ({facts})" if facts else ""))


def _change(one: Transition) -> str:
    words = {Stage.FIRING: "fires", Stage.INACTIVE: "is over", Stage.UNKNOWN: "can't be told any more"}
    return f"<code>{e(one.symptom)}</code> {words.get(one.after, e(one.after))}"
