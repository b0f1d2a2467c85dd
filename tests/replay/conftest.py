"""At the end of a run, what its stories and scenarios said about each symptom: in quiet runs too."""

import pytest

from tests.replay.tally import PROPERTY, SHOWS, shown, table


def pytest_itemcollected(item: pytest.Item) -> None:
    """Notes what a test will show, where its report takes it along, from another process if need be."""
    kind = SHOWS.get(getattr(item, "originalname", ""))
    if kind is not None:
        params = getattr(item, "callspec").params  # noqa: B009  # pytest has no type for it
        symptom = params["case"].symptom if "case" in params else params["symptom"]
        item.user_properties.append((PROPERTY, f"{symptom}: {kind}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = [
        row
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
        for row in shown(report.user_properties, passed=outcome == "passed")
    ]
    lines = table(found)
    if lines:
        terminalreporter.section("symptoms: stories and scenarios that passed", sep="-")
        for line in lines:
            terminalreporter.write_line(line)
