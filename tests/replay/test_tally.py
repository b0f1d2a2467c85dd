"""The table of what stories and scenarios say about each symptom."""

from tests.replay.tally import PROPERTY, SHOWS, shown, table


def test_a_row_counts_what_passed_and_says_of_how_many_where_some_failed() -> None:
    found = [("kv_exhausted", "hit", True)] * 3 + [
        ("kv_exhausted", "near miss", False),
        ("no_such", "hit", False),
    ]
    head, *rows = [line.split("  ") for line in table([*found, ("kv_exhausted", "near miss", True)])]
    assert [text.strip() for text in head if text] == list(SHOWS.values())
    assert [[text.strip() for text in row if text] for row in rows] == [
        ["kv_exhausted", "3", "1 of 2", "-", "-", "-"],
        ["no_such", "0 of 1", "-", "-", "-", "-"],
    ]


def test_no_story_no_table() -> None:
    assert table([]) == []


def test_what_a_test_shows_is_read_from_its_report() -> None:
    properties = [("other", "x: y"), (PROPERTY, "kv_exhausted: near miss")]
    assert shown(properties, passed=False) == [("kv_exhausted", "near miss", False)]
