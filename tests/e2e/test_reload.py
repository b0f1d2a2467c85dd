"""SIGHUP to a real kvwatch: what is new is taken, what stays is watched on, and what is wrong changes nothing."""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.neighbours import Neighbourhood
from tests.e2e.sidecar import Metrics, Sidecar, sidecar
from tests.support.certificates import self_signed
from tests.support.waiting import until

HOUR_S = 3600.0
_TABLE = '[[targets]]\nname = "a"\n'


def settings(town: Neighbourhood, *names: str, more: str = "") -> str:
    tables = "".join(f'[[targets]]\nname = "{name}"\nurl = "{town.url(name)}"\n' for name in names)
    return f'interval = 1\nbackoff_max = 1\ngpu = "off"\n{more}{tables}'


@pytest.fixture(scope="module")
def watch(town: Neighbourhood, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with sidecar(tmp_path_factory.mktemp("kvwatch"), settings(town, "good", "nan")) as watch:
        until("targets that are up", lambda: sum(watch.metrics().values("up")) == 2, 60)
        yield watch


def reloads(metrics: Metrics, outcome: str) -> float:
    return metrics.value("config_reloads_total", outcome=outcome) or 0.0


def reloaded(watch: Sidecar, text: str, outcome: str) -> Metrics:
    """The metrics after a reload of these settings that came to this."""
    before = reloads(watch.metrics(), outcome)
    watch.config.write_text(text, encoding="utf-8")
    watch.hang_up()
    until(f"reload that is {outcome}", lambda: reloads(watch.metrics(), outcome) == before + 1, 30)
    return watch.metrics()


def watched_s(metrics: Metrics, target: str) -> float:
    return sum(metrics.values("regime_seconds_total", target=target))


def test_targets_come_go_and_change_and_the_others_are_watched_on(
    town: Neighbourhood, watch: Sidecar
) -> None:
    until("time that is counted", lambda: watched_s(watch.metrics(), "good") > 0, 30)
    before = watch.metrics()
    first = reloaded(watch, settings(town, "good", "twice"), "ok")
    assert set(first.of("up", "target")) <= {"good", "twice"}
    assert first.of("polls_total", "target")["good"] >= before.of("polls_total", "target")["good"] > 0
    until("the new target up", lambda: watch.metrics().of("up", "target").get("twice") == 1, 30)
    told = watch.logged().splitlines()[-4:]
    assert any(
        "settings reloaded" in line and "added=twice" in line and "removed=nan" in line for line in told
    )
    polls = watch.metrics().of("polls_total", "target")["good"]
    stricter = settings(town, "good", "twice", more='disabled = "kv_near_full"\n')
    second = reloaded(watch, stricter, "ok")
    assert second.of("polls_total", "target")["good"] >= polls
    assert watched_s(second, "good") >= watched_s(first, "good") > 0, "what was counted of it stays"
    until(
        "a symptom that is no longer judged",
        lambda: not watch.metrics().values("symptom_firing", symptom="kv_near_full"),
        30,
    )
    assert second.value("config_last_reload_successful") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interval = [", "not TOML"),
        ("interval = 0\n", "must be from 0.05 to 3600 seconds"),
        (
            '[[targets]]\nname = "s"\nurl = "https://localhost:1"\nca_file = "/dev/null"\n',
            "can't use /dev/null for target s",
        ),
        (
            '[[targets]]\nname = "good"\nurl = "localhost"\n[[targets]]\nname = "good"\nurl = "localhost:1"\n',
            "two targets",
        ),
    ],
    ids=["not TOML", "out of range", "no certificate", "twice the name"],
)
def test_what_is_wrong_leaves_the_old_in_force(watch: Sidecar, text: str, said: str) -> None:
    right, before = watch.config.read_text(encoding="utf-8"), watch.metrics()
    after = reloaded(watch, text, "failed")
    assert after.value("config_last_reload_successful") == 0
    assert after.of("up", "target") == before.of("up", "target")
    assert said in watch.logged()
    assert "settings reload failed; the old settings stay" in watch.logged()
    again = reloaded(watch, right, "ok")
    assert again.value("config_last_reload_successful") == 1
    assert watched_s(again, "good") >= watched_s(before, "good")


def test_what_needs_a_restart_is_said_and_stays(town: Neighbourhood, watch: Sidecar) -> None:
    reloaded(watch, settings(town, "good", "twice", more="gpu_interval = 60\n"), "ok")
    assert "counts_after_a_restart=gpu_interval" in watch.logged()


def test_a_token_is_changed(town: Neighbourhood, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-secret", encoding="utf-8")
    with sidecar(tmp_path, settings(town, "good", more=f'api_token_file = "{token}"\n')) as watch:

        def status(word: str) -> int:
            headers = {"Authorization": f"Bearer {word}"}
            return httpx.get(f"{watch.url}/metrics", headers=headers, timeout=10).status_code

        assert [status("first-secret"), status("second-secret")] == [200, 401]
        token.write_text("second-secret", encoding="utf-8")
        watch.hang_up()
        until("the new token", lambda: status("second-secret") == 200, 30)
        assert status("first-secret") == 401
        assert "secret" not in watch.logged()


def test_a_certificate_is_renewed(town: Neighbourhood, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, "one.example")
    pair = f'tls_cert = "{cert}"\ntls_key = "{key}"\n'
    with sidecar(tmp_path, settings(town, "good", more=pair), scheme="https") as watch:
        port = httpx.URL(watch.url).port
        assert port is not None

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)

        first = cert.read_text(encoding="utf-8")
        assert shown() == first
        self_signed(tmp_path, "two.example")
        second = cert.read_text(encoding="utf-8")
        watch.hang_up()
        until("the new certificate", lambda: shown() == second != first, 30)
        cert.write_text("no certificate", encoding="utf-8")
        watch.hang_up()
        until("a reload that is refused", lambda: "can't use the certificate" in watch.logged(), 30)
        assert shown() == second


def test_neither_a_clock_that_is_set_nor_a_machine_that_sleeps_makes_up_anything(
    watch: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of day is set back an hour and forth; then the process is stopped for longer than a gap while the time
    of day goes on by an hour, as in a suspended machine."""

    def polled(times: int) -> Metrics:
        start = watch.metrics().of("polls_total", "target")["good"]
        until("polls", lambda: watch.metrics().of("polls_total", "target")["good"] >= start + times, 60)
        return watch.metrics()

    lines = []
    before = polled(1)
    for off_s, what in ((-HOUR_S, "set back an hour"), (0.0, "set right again")):
        watch.set_clock(off_s)
        began = time.monotonic()
        after = polled(4)
        lines.append(f"time of day {what:16} 4 good polls within {time.monotonic() - began:.1f} s")
        assert after.value("up", target="good") == 1
        assert 0 <= (after.value("data_age_seconds", target="good") or 0) < 30
        gained = watched_s(after, "good") - watched_s(before, "good")
        assert 0 <= gained < 120, "monotonic time counts, not the time of day"
        before = after
    watch.process.send_signal(signal.SIGSTOP)
    time.sleep(11)
    watch.set_clock(HOUR_S)
    watch.process.send_signal(signal.SIGCONT)
    began = time.monotonic()
    after = polled(2)
    lines.append(
        f"asleep for 11 s, an hour by the clock: 2 good polls within {time.monotonic() - began:.1f} s"
    )
    watch.set_clock(0)
    assert after.value("up", target="good") == 1
    assert after.value("engine_restarts_total", target="good") == 0
    assert not any(after.values("symptom_firing", target="good", symptom="engine_stalled"))
    assert sum(after.values("poll_errors_total")) == 0
    assert "Traceback" not in watch.logged()
    with capsys.disabled():
        print("\n" + "\n".join(lines))
