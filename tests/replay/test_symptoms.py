"""What the stories of each symptom come to. `test_every_symptom_has_its_three_stories` fails for a new row until it
has them.
"""

from functools import partial

import pytest

from kvwatch.core.export.findings import findings
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.symptoms import SYMPTOMS
from tests.replay.stories import HITS, MISSING, NEAR_MISSES, Case
from tests.support.pages import Server
from tests.support.watch import Watch, replayed


def unscraped(server: Server, seconds: int = 90) -> Watch:
    """A server that was well and is not scraped any more."""
    watch = Watch()
    server.finish(1)
    watch.see(server)
    for _ in range(seconds):
        watch.fail()
    return watch


def label(case: Case) -> str:
    name = case.story.args[0] if isinstance(case.story, partial) else getattr(case.story, "__name__", "")
    return f"{case.symptom}-{name}"


@pytest.mark.parametrize("case", HITS, ids=label)
def test_fires_in_its_story(case: Case) -> None:
    """The symptom fires, and where it fires in the end the finding has evidence, a meaning and actions."""
    watch = case.story()
    assert watch.fired(case.symptom)
    if case.ends is not None:
        assert watch.stage(case.symptom) is case.ends
    for found in findings(watch.state):
        assert found.evidence
        assert found.advice.actions
        assert found.symptom.meaning


@pytest.mark.parametrize("case", NEAR_MISSES, ids=label)
def test_does_not_fire_in_a_near_miss(case: Case) -> None:
    """The symptom never fires, though it nearly does."""
    watch = case.story()
    assert not watch.fired(case.symptom)
    if case.ends is not None:
        assert watch.stage(case.symptom) is case.ends


@pytest.mark.parametrize("case", MISSING, ids=label)
def test_is_unknown_where_a_signal_is_missing(case: Case) -> None:
    """Without what it needs the symptom never fires and is not called clear, with the reason."""
    watch = case.story()
    assert not watch.fired(case.symptom)
    assert watch.stage(case.symptom) is case.ends
    if case.ends is Stage.UNKNOWN:
        lives = {
            **watch.state.symptoms,
            **{k: v for e in watch.state.engines.values() for k, v in e.symptoms.items()},
        }
        assert lives[case.symptom].reason


def test_every_symptom_has_its_three_stories() -> None:
    """A row of the table comes with a hit, a near miss and a missing signal."""
    for cases in (HITS, NEAR_MISSES, MISSING):
        assert {case.symptom for case in cases} == {row.id for row in SYMPTOMS}


@pytest.mark.parametrize(
    "row", [row for row in SYMPTOMS if row.scope.value == "engine"], ids=lambda row: row.id
)
def test_an_engine_that_is_not_scraped_is_unknown(row: object) -> None:
    """While nobody answers, nothing about the engine is known; after the grace period that shows."""
    watch = unscraped(Server(usage=0.99, running=9, waiting=30))
    name = getattr(row, "id", "")
    assert watch.stage(name) is Stage.UNKNOWN


def test_an_idle_server_has_no_symptoms() -> None:
    """Ten minutes of nothing: nothing fires, nothing is pending, nothing is unknown."""
    watch, server = Watch(), Server()
    server.finish(30)
    for _ in range(600):
        watch.see(server)
    stages = {name: watch.stage(name) for name in (*watch.state.symptoms, *watch.engine.symptoms)}
    assert set(stages.values()) == {Stage.INACTIVE}, stages
    assert not watch.transitions


def test_a_cause_outranks_its_effects() -> None:
    """Where one firing symptom accounts for another, the other says so and stands behind it."""
    watch = replayed("0.9.2--x-engine-died-metrics-frozen")
    found = findings(watch.state)
    assert found[0].symptom.id == "engine_stalled"
    assert all(
        "engine_stalled" in other.explained_by for other in found[1:] if other.symptom.id.startswith("kv_")
    )


def test_a_stall_shows_the_threshold_that_it_was_judged_by() -> None:
    """An engine that never did anything is given longer, and the evidence says how long."""
    watch, server = Watch(), Server(usage=0.4, running=3)
    server.queried = 1
    for _ in range(303):
        watch.see(server)
    (found,) = (one for one in findings(watch.state) if one.symptom.id == "engine_stalled")
    assert found.evidence["threshold_seconds"] == 300
    assert found.evidence["last_progress_age_seconds"] >= 300
