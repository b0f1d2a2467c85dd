"""Every row of the table of verdicts is complete. What is missing is reported with the file to edit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from kvwatch.logs.cause_row import SHARED, Cause, fact_names, fill, parse_text
from kvwatch.logs.causes import CAUSES, VERDICTS
from kvwatch.logs.derived_facts import DERIVED
from kvwatch.logs.log_patterns import OPTIONS, PATTERNS
from kvwatch.logs.out_of_memory import OOM_SIZES
from tests.logs.test_starts import CASES

_FILE = "kvwatch/logs/causes.py"
_MADE_IN_CODE = {"available_gib", "kv_cache_memory_bytes_gib", "other_error", "ranks"}


def _groups(patterns: Iterable[str | re.Pattern[str]]) -> set[str]:
    return {name for pattern in patterns for name in re.compile(pattern).groupindex}


FACTS = (
    _groups(row.pattern for row in PATTERNS)
    | _groups(OOM_SIZES)
    | _groups(pattern for row in CAUSES for pattern in row.facts)
    | {*OPTIONS.values(), *DERIVED, *_MADE_IN_CODE}
)


def problems(row: Cause) -> Iterator[str]:
    """What is wrong with a row, one sentence each."""
    here = f"{_FILE}: {row.verdict}"
    for name in re.findall(r"<(\w+)>", row.text):
        if name not in SHARED:
            yield f"{here} inserts <{name}>, which SHARED of kvwatch/logs/cause_row.py does not have"
            return
    meaning, actions = parse_text(row.text)
    named = [name for text in (meaning, *(action.text for action in actions)) for name in fact_names(text)]
    named += [name.removeprefix("not ") for action in actions for name in action.when]
    named += [*row.evidence, *(row.stops_after[1:] if row.stops_after else ())]
    for name in dict.fromkeys(named):
        if name not in FACTS:
            yield (
                f"{here} names the fact {name!r}, which nothing computes: correct it, or add it to"
                " kvwatch/logs/log_patterns.py (a number in a line) or kvwatch/logs/derived_facts.py"
            )
    if not fill(meaning, {}):
        yield f"{here} has no meaning for a log without numbers: put the facts of its first sentences in brackets"
    if not actions and row.verdict not in {"ok", "no_vllm_log"}:
        yield f"{here} has no action: add one to its text"
    if row.signs and not row.words:
        yield f"{here} has signs, but no words by which their lines are found: add `words`"
    if row.verdict not in {verdict for _, verdict, _ in CASES.values()} | _TESTED_ELSEWHERE:
        yield f"tests/logs/test_starts.py: {row.verdict} has no case: add one to CASES"


_TESTED_ELSEWHERE = {"block_size_unsupported", "ok", "no_vllm_log"}


@pytest.mark.parametrize("row", CAUSES, ids=lambda row: row.verdict)
def test_a_row_is_complete(row: Cause) -> None:
    assert not list(problems(row)), "\n".join(problems(row))


def test_a_wrong_row_is_reported_in_a_sentence_and_still_works() -> None:
    row = replace(CAUSES[0], verdict="new", text="{lenght} tokens\n- (odd) do it", words=())
    found = list(problems(row))
    assert [text.split(":")[0] for text in found] == [_FILE] * 4 + ["tests/logs/test_starts.py"]
    assert "names the fact 'lenght'" in found[0]
    assert "names the fact 'odd'" in found[1]
    assert (row.meaning({}), row.actions({})) == ("", ())
    assert "<none>" in next(problems(replace(row, text="Not.\n- <none>")))


def test_every_verdict_is_documented_with_its_meaning_and_actions() -> None:
    assert [row.id for row in VERDICTS] == [row.verdict for row in CAUSES]
    assert len({row.id for row in VERDICTS}) == len(VERDICTS)
    for row in VERDICTS:
        texts = [row.meaning, *row.actions]
        assert not [text for text in texts if re.search(r"[{}\[\]|?]|  | [.:;]|^\W|:\.?$", text)], row
        assert row.meaning.endswith(".")


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        ("{util} used[ of {total_gib}]", {"util": 0.9}, "0.9 used"),
        ("{util} used[ of {total_gib}]", {"util": 0.9, "total_gib": 24}, "0.9 used of 24 GiB"),
        ("[{a:,} tokens|{b} blocks|nothing]", {"b": 3.0}, "3 blocks"),
        ("[{a:,} tokens|{b} blocks|nothing]", {"a": 4096}, "4,096 tokens"),
        ("[{a:,} tokens|{b} blocks|nothing]", {}, "nothing"),
        ("[pinned?it is pinned|it is not]", {"pinned": True}, "it is pinned"),
        ("[pinned?it is pinned|it is not]", {}, "it is not"),
        ("needs {tried_mib}", {"tried_mib": 1.5}, "needs 1.5 MiB"),
        ("needs {tried_mib}", {}, ""),
        ("quotes {error}", {"error": "{util} [x|y]"}, "quotes {util} [x|y]"),
    ],
)
def test_a_text_has_the_parts_whose_facts_are_known(
    text: str, facts: dict[str, float | str | bool], expected: str
) -> None:
    assert fill(text, facts) == expected
