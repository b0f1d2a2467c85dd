"""Two paces over one path: whichever way a page comes, whole or narrowed, what is made of it is the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.core.dialect.vllm import sample_names
from kvwatch.core.judgement.lifecycle import Lifecycle
from kvwatch.core.judgement.pipeline import advance, next_pace
from kvwatch.core.judgement.state import State, initial
from kvwatch.core.model.outcome import Scrape
from kvwatch.sidecar.polling.narrowing import complete
from tests.support.loopback import narrowed, pages

CAPTURED = (
    "0.32.0--c-kv-saturation.jsonl.gz",
    "0.32.0--j-data-parallel-2.jsonl.gz",
    "0.32.0--e-shared-prefix.jsonl.gz",
    "0.13.0--c-kv-saturation.jsonl.gz",
    "0.8.5-v0--c-kv-saturation.jsonl.gz",
)
bodies = cache(pages)


def run(recorded: list[bytes], as_narrowed: list[bool]) -> State:
    """A watch of pages, one a second, some of them narrowed to what is asked for at the pace that is due."""
    state = initial("vllm")
    for n, (body, narrow) in enumerate(zip(recorded, as_narrowed, strict=True)):
        pace = next_pace(state, float(n))
        names = sample_names(state.policy.vocabulary, state.exposed, pace)
        some = narrow and complete(state)  # until all is there, nothing is narrowed
        page = narrowed(body, list(names)) if some else body
        state, _ = advance(state, Scrape(page, float(n), pace=pace, narrowed=some), float(n))
    return state


def stages(symptoms: Mapping[str, Lifecycle]) -> dict[str, object]:
    """Where each symptom is. What its evidence hints at may come from families that are read every 15 s."""
    return {name: (one.stage, one.since, one.verdict, one.verdict_for_s) for name, one in symptoms.items()}


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_nothing_downstream_can_tell_how_a_page_came(data: st.DataObject) -> None:
    recorded = bodies(data.draw(st.sampled_from(CAPTURED)))
    length = data.draw(st.integers(20, 50))
    begin = data.draw(st.integers(0, max(len(recorded) - length, 0)))
    some = recorded[begin : begin + length]
    pattern = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    mixed, whole = run(some, pattern), run(some, [False] * len(some))
    assert mixed.engines.keys() == whole.engines.keys()
    for key, one in mixed.engines.items():
        other = whole.engines[key]
        assert one.windows == other.windows
        assert one.regime_seconds == other.regime_seconds
        assert one.usage_tally == other.usage_tally
        assert one.derived == other.derived
        assert stages(one.symptoms) == stages(other.symptoms)
    assert stages(mixed.symptoms) == stages(whole.symptoms)
    assert mixed.events == whole.events
