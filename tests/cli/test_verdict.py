"""What `check` makes of parts of real recordings, by their own clocks."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvwatch.commands import check
from kvwatch.commands.check_report import report_of
from kvwatch.commands.check_verdict import Conclusion, conclude
from kvwatch.commands.output import draw
from kvwatch.commands.watch import Watch
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.recording import Record, outcome_of, read
from tests.support.pages import Server

RECORDINGS = Path(__file__).resolve().parents[1] / "replay" / "recordings"
SATURATED = "0.32.0--c-kv-saturation"
QUEUED = "0.32.0--d-queue-no-cache-pressure"
HEALTHY = "0.32.0--b-healthy"
RESTART = "0.32.0--i-restart"


def watched(name: str, begin: float, seconds: float = 30, *, policy: Policy | None = None) -> Watch:
    """A watch over some seconds of a recording."""
    watch = Watch("vllm", policy or Policy())
    records = [item for item in read(RECORDINGS / f"{name}.jsonl.gz") if isinstance(item, Record)]
    start = records[0].t + begin - 0.1
    for record in records:
        if start <= record.t <= start + seconds + 0.5:
            pace = next_pace(watch.state, record.t)
            watch.feed(outcome_of(record, interval_s=1, pace=pace), record.t)
    return watch


def made(*servers: Callable[[int], Server | None], seconds: int = 31, policy: Policy | None = None) -> Watch:
    """A watch over made-up engines, or over nothing where one is None."""
    watch = Watch("vllm", policy or Policy())
    for second in range(seconds):
        pages = [server(second) for server in servers]
        body = "".join(page.page for page in pages if page is not None)
        found = Scrape(body.encode(), second) if body else ScrapeError(Failure.REFUSED, "nobody", second)
        watch.feed(found, 1000.0 + second)
    return watch


class Engine:
    """A made-up engine that goes on generating; `gauges` are usage, running and waiting at a second."""

    def __init__(self, gauges: Callable[[int], tuple[float, int, int]], engine: str = "0") -> None:
        self.gauges = gauges
        self.server = Server(engine=engine)
        self.server.finish(3)

    def __call__(self, second: int) -> Server:
        server = self.server
        server.usage, server.running, server.waiting = self.gauges(second)
        server.generation_tokens += 50
        server.prompt_tokens += 10
        return server


CALM, FULL = (0.3, 3, 0), (0.99, 3, 20)


def test_waiting_all_the_time_is_not_fine_though_no_window_is_full() -> None:
    watch = watched(SATURATED, 50, 28, policy=Policy(disabled=frozenset({"kv_thrashing"})))
    assert (watch.findings(), watch.pending()) == ([], [])
    found = conclude(watch)
    assert (found.word, found.code) == ("pending", 1)
    assert found.why == (
        "requests waited for the KV cache for 100 % of 0:28; kv_exhausted needs more than 30 s within a"
        " minute: watch longer, --for 90s"
    )
    data = check.as_data(watch, found)
    assert (data["verdict"], data["exit_code"]) == ("pending", 1)
    assert data["limited"] == [
        {
            "target": "vllm",
            "model_name": "tiny-llama",
            "engine": "0",
            "regime": "kv_limited",
            "seconds": pytest.approx(28, abs=0.5),
            "watched_seconds": pytest.approx(28, abs=0.5),
            "share": 1,
            "symptom": "kv_exhausted",
            "needs_seconds": 30,
            "window_seconds": 60,
            "watch_for_seconds": 90,
            "text": found.why,
        }
    ]


def test_the_advice_to_watch_longer_is_enough() -> None:
    policy = Policy(disabled=frozenset({"kv_thrashing"}), thresholds={"kv_exhausted.share": 0.4})
    (limited,) = conclude(watched(SATURATED, 40, 20, policy=policy)).limited
    assert limited.watch_for_s is not None
    longer = conclude(watched(SATURATED, 20, limited.watch_for_s, policy=policy))
    assert (longer.word, longer.why.partition(",")[0]) == ("findings", "kv_exhausted")
    assert longer.limited == ()


def test_waiting_for_a_slot_is_pending() -> None:
    watch = watched(QUEUED, 12, 28)
    assert watch.findings() == []
    found = conclude(watch)
    assert found.code == 1
    assert "requests waited for a slot in the batch for " in found.why
    assert "sequence_limited needs more than 30 s within a minute" in found.why


def test_what_a_symptom_reports_is_not_repeated() -> None:
    firing = conclude(watched(SATURATED, 40))
    assert (firing.word, firing.limited) == ("findings", ())
    pending = conclude(watched(SATURATED, 33, 8))
    assert (pending.word, pending.why, pending.limited) == ("pending", "kv_thrashing", ())


@pytest.mark.parametrize("begin", [5, 15, 40])
def test_a_healthy_server_is_fine(begin: float) -> None:
    assert conclude(watched(HEALTHY, begin)) == Conclusion("fine", "nothing is wrong")


def test_waiting_for_prefill_is_pending() -> None:
    (limited,) = conclude(made(Engine(lambda second: (0.3, 3 + second % 3, 9)))).limited
    assert (limited.regime, limited.symptom, limited.watch_for_s) == (
        "prefill_limited",
        "prefill_limited",
        90,
    )
    assert "prefill_limited needs more than 30 s within a minute" in limited.text


@pytest.mark.parametrize(("full", "word"), [(13, "fine"), (19, "pending")])
def test_half_of_the_time_is_what_matters(full: int, word: str) -> None:
    """It is over at the end, and all that is known is that it was so for most of the time."""
    watch = made(Engine(lambda second: FULL if second < full else CALM))
    assert conclude(watch).word == word


def test_the_regime_of_a_disabled_symptom_is_not_reported() -> None:
    off = Policy(disabled=frozenset({"kv_exhausted", "kv_thrashing"}))
    assert conclude(made(Engine(lambda _: FULL), policy=off)).word == "fine"


def test_a_resolved_finding_is_named() -> None:
    watch = made(Engine(lambda second: FULL if second < 150 else CALM), seconds=280)
    found = conclude(watch)
    assert watch.findings() == []
    assert (found.code, "kv_exhausted fired and resolved" in found.why) == (1, True)


@pytest.mark.parametrize("seconds", [0, 4, 9])
@pytest.mark.parametrize("name", [SATURATED, HEALTHY])
def test_a_few_seconds_give_no_verdict(name: str, seconds: float) -> None:
    policy = Policy(disabled=frozenset({"kv_thrashing"}))
    found = conclude(watched(name, 50, seconds, policy=policy))
    assert (found.word, found.code) == ("unknown", 2)
    assert "watched too short: 0:0" in found.why


def test_a_server_that_was_down_for_most_of_it_is_not_fine() -> None:
    calm = Engine(lambda _: CALM)
    found = conclude(made(lambda second: calm(second) if second < 3 or second > 25 else None))
    assert found.code == 2
    assert "the server did not answer for 0:2" in found.why
    assert "refused" in found.why
    assert conclude(watched(RESTART, 41, 10)).why.startswith("the server could not be scraped (refused: ")


def test_what_is_no_vllm_is_unknown_and_says_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch("vllm", Policy())
    for second in range(7):  # then it is given up
        watch.feed(Scrape(b"# TYPE node_load1 gauge\nnode_load1 0.5\n", second), 1000.0 + second)
    found = conclude(watch)
    assert (found.word, found.code) == ("unknown", 2)
    assert found.why.startswith("the server could not be scraped (not vllm: status 200 with ")
    draw(report_of(watch, "gpu1:9100", found))
    said = capsys.readouterr().out
    assert "- The address is not vLLM's /metrics\n" in said
    assert "Pending" not in said
    assert "Unknown:" not in said.partition("\n")[2]


def test_nothing_there_says_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    watch = made(lambda _: None, seconds=6)
    draw(report_of(watch, "gpu1:8000", conclude(watch)))
    said = capsys.readouterr().out
    assert said.startswith("Unknown: the server could not be scraped (refused: nobody)\n")
    assert "- The address or port is wrong" in said
    assert "1. Check the server's process and the last lines of its log: nothing listens on the port." in said


def test_the_finding_of_two_engines_is_laid_out_once_with_the_numbers_of_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = made(Engine(lambda _: (0.99, 12, 20)), Engine(lambda _: (0.98, 13, 21), engine="1"), seconds=60)
    found = conclude(watch)
    first, second = (one["engine"] for one in watch.findings() if one["symptom"] == "kv_exhausted")
    assert {first, second} == {"0", "1"}
    draw(report_of(watch, "gpu1:8000", found))
    said = capsys.readouterr().out
    assert said.count("  kv_exhausted, ") == said.count("kv_exhausted, firing for ") == 1
    assert len(re.findall("^  Do now", said, re.MULTILINE)) == len(
        {one["symptom"] for one in watch.findings()}
    )
    others = said.partition("The same on:\n")[2]
    assert others.startswith(f"    vllm / tiny / engine {second}: ")
    assert re.search(r"^ +engine 0 +engine 1$", said, re.MULTILINE)
    assert re.search(r"^regime now +kv_limited +kv_limited$", said, re.MULTILINE)


def test_unknown_for_most_of_it_says_what_is_missing() -> None:
    lacking = Server(running=1, without=frozenset({"num_requests_waiting"}))
    policy = Policy(disabled=frozenset({"signals_missing"}))
    found = conclude(made(lambda _: lacking, policy=policy))
    assert found.code == 2
    assert "the server does not expose enough (requests_waiting: " in found.why


def test_unknown_symptoms_name_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    ill = Server(running=1, engine="1", without=frozenset({"num_preemptions"}))
    watch = made(Engine(lambda _: CALM), lambda _: ill)
    draw(report_of(watch, "gpu1:8000", conclude(watch), full=True))
    said = capsys.readouterr().out
    assert "  kv_thrashing on vllm/tiny/1: preemptions_total" in said
    assert {one["engine"] for one in check.as_data(watch, conclude(watch))["unknown"]} >= {"1"}
    alone = made(lambda _: ill)
    draw(report_of(alone, "gpu1:8000", conclude(alone), full=True))
    assert "  kv_thrashing: preemptions_total" in capsys.readouterr().out


def test_what_is_wrong_comes_first_then_what_to_do_and_the_evidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = watched(SATURATED, 0, 90)
    draw(report_of(watch, "gpu1:8000", conclude(watch)))
    said = capsys.readouterr().out
    parts = [
        "Findings: kv_thrashing",
        "CRITICAL  vllm / tiny-llama / engine 0: KV cache thrashing",
        "Preemptions per request",
        "Do now, no restart:",
        "1. ",
        "With a restart (running requests and the prefix cache are lost):",
        "--gpu-memory-utilization",
        "Do not:",
        "- Raise --max-num-seqs",
        "Evidence:",
        "Likely causes:",
        "Caused by kv_thrashing: fix that first.",
        "Time per regime: kv_limited",
        "  kv_limited: requests wait for KV cache blocks\n",
        "  idle: no request runs or waits\n",
        "none failed",
    ]
    places = [said.find(part) for part in parts]
    assert places == sorted(places)
    assert places[0] == 0
    assert re.search(r"Preemptions per request +[\d.]+ +0\.3\n", said)
    assert "\x1b" not in said
    assert all(line == line.rstrip() and len(line) < 120 for line in said.splitlines())
