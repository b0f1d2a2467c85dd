"""Scripted scenarios: incidents of real servers rebuilt from their numbers, healthy hours, and traps.

Each file in `scenarios/` says what must fire, what may, and what must not be said; everything else must not fire
above info. The notation is that of `scenario.py`.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from kvwatch.core.export.findings import Finding, findings
from kvwatch.core.judgement.advice.choose import Action
from kvwatch.core.judgement.advice.levers import FEWER_SLOTS, MORE_SLOTS
from kvwatch.core.judgement.symptoms import BY_ID, Severity
from tests.replay.scenario import Must, Scenario, read
from tests.replay.scripted import play
from tests.support.watch import Watch

FOLDER = Path(__file__).parent / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))

_CLAUSE = re.compile(r"[.;:()]\s+|, (?:not|never|and do not) |\s+not\s+(?=--)")
_NEGATED = re.compile(r"(?:please )?(?:do not|don't|never|not|no need to|there is no)\b", re.IGNORECASE)


@cache
def scenario(name: str) -> Scenario:
    return read(FOLDER / f"{name}.txt")


@cache
def played(name: str) -> Watch:
    return play(scenario(name))


def musts() -> list[tuple[str, Must]]:
    return [(name, must) for name in NAMES for must in scenario(name).fires]


def known(ids: Iterable[str]) -> None:
    """Fails with a clear text for a symptom that is not in the table."""
    lacking = sorted(set(ids) - set(BY_ID))
    assert not lacking, f"the symptom table has no row {', '.join(lacking)}"


def sentences(found: Finding) -> list[str]:
    """The texts of a finding, except for what not to do."""
    row = found.symptom
    return [row.title, row.meaning, *row.causes, *map(with_direction, found.advice.actions)]


def with_direction(action: Action) -> str:
    """The sentence of an action, with the direction that the amount of slots only implies."""
    for verb, lever in (("Raise", MORE_SLOTS), ("Lower", FEWER_SLOTS)):
        if action.option == lever.option and action.text.endswith(lever.text.partition("{value}")[2]):
            return f"{verb} {action.sentence}"
    return action.sentence


def advised(text: str) -> list[str]:
    """The clauses of a text that are meant: those that begin with "do not" are not."""
    parts, last, negated = [], 0, False
    for match in [*_CLAUSE.finditer(text), None]:
        clause = text[last : match.start() if match else len(text)]
        if clause.strip() and not negated and not _NEGATED.match(clause.strip()):
            parts.append(clause.strip())
        if match:
            last, negated = match.end(), "not" in match.group() or "never" in match.group()
    return parts


def told(watch: Watch) -> dict[str, list[str]]:
    """All sentences about what fired, by symptom: when something changed, and in the end."""
    all_: dict[str, list[str]] = {}
    for turn in (*(turn for _, turn in watch.turns), findings(watch.state)):
        for found in turn:
            all_.setdefault(found.symptom.id, []).extend(sentences(found))
    return all_


@pytest.mark.parametrize(
    ("name", "symptom", "by"),
    [(name, must.symptom, must.by) for name, must in musts()],
    ids=[f"{name}-{must.symptom}" for name, must in musts()],
)
def test_what_must_fire_fires(name: str, symptom: str, by: float | None) -> None:
    """A symptom of the scenario fires, and in time where a time is told."""
    known([symptom])
    watch = played(name)
    at = watch.first_fired(symptom)
    assert at is not None, f"{symptom} never fired; {_shown(watch)}"
    assert by is None or at <= by, f"{symptom} fired at {at:.0f} s, after {by:.0f} s"


@pytest.mark.parametrize(
    ("name", "symptom"),
    [(name, symptom) for name in NAMES for symptom in sorted(scenario(name).never)],
)
def test_what_must_not_fire_does_not(name: str, symptom: str) -> None:
    """A symptom that the scenario only seems to be never fires, not even as information."""
    known([symptom])
    watch = played(name)
    assert not watch.fired(symptom), f"{symptom} fired; {_shown(watch)}"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_fires(name: str) -> None:
    """Nothing above info fires but what must or may."""
    told_of, watch = scenario(name), played(name)
    allowed = {must.symptom for must in told_of.fires} | told_of.may
    loud = {one for one in watch.all_fired() if BY_ID[one].severity is not Severity.INFO}
    assert not loud - allowed, f"{', '.join(sorted(loud - allowed))} fired; {_shown(watch)}"
    known(told_of.may)


@pytest.mark.parametrize("name", [name for name in NAMES if scenario(name).says_not])
def test_no_wrong_advice_is_given(name: str) -> None:
    """No title, meaning, cause or action of anything that fires says what would be wrong here."""
    for pattern in scenario(name).says_not:
        for symptom, texts in told(played(name)).items():
            for text in texts:
                said = [part for part in advised(text) if re.search(pattern, part, re.IGNORECASE)]
                assert not said, f"{symptom} says {said[0]!r}, which {pattern!r} forbids"


@pytest.mark.parametrize("name", [name for name in NAMES if scenario(name).says])
def test_the_right_thing_is_said(name: str) -> None:
    """Something said about what fires names what matters here."""
    for pattern in scenario(name).says:
        texts = [text for said in told(played(name)).values() for text in said]
        assert any(re.search(pattern, text, re.IGNORECASE) for text in texts), (
            f"nothing says {pattern!r}: {texts}"
        )


@pytest.mark.parametrize("name", [name for name in NAMES if scenario(name).distrusts])
def test_a_number_that_misleads_is_not_trusted(name: str) -> None:
    """A derived number that nobody should judge by is marked so, with the reason."""
    for number in scenario(name).distrusts:
        for engine in played(name).state.engines.values():
            assert engine.derived.untrusted.get(number), f"{number} is trusted: {engine.derived.get(number)}"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_says_where_it_comes_from(name: str) -> None:
    """Each has a title and an origin in one line."""
    assert scenario(name).title
    assert scenario(name).origin


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("raise --max-num-seqs stepwise", ["raise --max-num-seqs stepwise"]),
        ("do not raise --max-num-seqs: there is no cache for more", []),
        ("lower --max-model-len; don't raise --max-num-seqs", ["lower --max-model-len"]),
        ("more KV memory, not --max-num-seqs up", ["more KV memory"]),
        ("Nothing is lost yet: it fits, barely.", ["Nothing is lost yet", "it fits, barely."]),
        ("if it fits not, raise --max-num-seqs", ["if it fits not, raise --max-num-seqs"]),
    ],
)
def test_an_action_that_begins_with_do_not_advises_nothing(text: str, meant: list[str]) -> None:
    assert advised(text) == meant


def _shown(watch: Watch) -> str:
    fired = ", ".join(f"{name} at {at:.0f} s" for name, at in watch.all_fired().items()) or "nothing fired"
    regimes = ", ".join(f"{regime} {spent:.0f} s" for regime, spent in watch.regimes().most_common(4))
    return f"{fired}; regimes: {regimes}"
