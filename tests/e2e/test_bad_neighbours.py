"""One real kvwatch, beside servers that do everything wrong at the same time, over real sockets.

What each does is in `neighbours.py`. The test prints a table: what kvwatch made of it, and how soon it was back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.neighbours import FAULTS, Fault, Neighbourhood
from tests.e2e.sidecar import Metrics, Sidecar, sidecar
from tests.support.waiting import until

INTERVAL_S = 4.0
"""Long, so that a busy machine has time for all of them; what is judged does not depend on it."""
MET = 3
"""How often each fault is met, at least."""
GONE = "no-such-host.invalid"


def config_of(town: Neighbourhood) -> str:
    lines = [f"interval = {INTERVAL_S}", f"backoff_max = {INTERVAL_S}", 'gpu = "off"']
    for name in ("good", *(fault.name for fault in FAULTS)):
        lines += ["[[targets]]", f'name = "{name}"', f'url = "{town.url(name)}"']
    lines += ["[[targets]]", 'name = "dns"', f'url = "http://{GONE}:8000/metrics"']
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def watch(town: Neighbourhood, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with sidecar(tmp_path_factory.mktemp("kvwatch"), config_of(town)) as watch:
        yield watch


def _ups(metrics: Metrics) -> dict[str, float]:
    return metrics.of("up", "target")


def _failures(before: Metrics, after: Metrics, target: str) -> dict[str, int]:
    """Failed scrapes of a target between two looks, by kind."""
    first, last = (metrics.of("scrapes_total", "outcome", target=target) for metrics in (before, after))
    return {kind: int(last[kind] - first[kind]) for kind in last if kind != "ok" and last[kind] > first[kind]}


def test_every_fault_is_counted_and_bounded_and_recovered_from(
    town: Neighbourhood, watch: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [fault.name for fault in FAULTS]
    until("targets that are up", lambda: all(_ups(watch.metrics()).get(name) for name in names), 60)
    before, memory, descriptors = watch.metrics(), watch.resident_bytes(), watch.descriptors()
    town.bad = True
    most = memory

    def met() -> Metrics | None:
        nonlocal most
        most = max(most, watch.resident_bytes())
        during = watch.metrics()
        now, then = (metrics.of("polls_total", "target") for metrics in (during, before))
        return during if all(now[name] >= then[name] + MET for name in names) else None

    during = until(f"{MET} polls of each", met, 90, every_s=1.0)
    ended = time.monotonic()
    town.answered.clear()
    town.bad = False

    def recovered() -> bool:
        ups = watch.metrics().of("up", "target")
        return town.answered.keys() >= set(names) and all(ups[name] for name in names)

    until("recovery of all", recovered, 60, every_s=1.0)
    after = watch.metrics()
    with capsys.disabled():
        print(f"\n{'fault':38} {'kvwatch counted':34} recovered after")
        for fault in FAULTS:
            counted = ", ".join(f"{n} {kind}" for kind, n in _failures(before, during, fault.name).items())
            print(
                f"{fault.text:38} {counted or 'read all the same':34} {town.answered[fault.name] - ended:.1f} s"
            )
        print(
            f"all at once: memory {memory >> 20} MiB, at most {most >> 20} MiB, {watch.resident_bytes() >> 20} MiB"
            f" after; file descriptors {descriptors}, {watch.descriptors()} after; slowest answer of /metrics"
            f" {watch.slowest_s:.2f} s"
        )
    for fault in FAULTS:
        _judge(fault, before, during)
    assert sum(after.values("poll_errors_total")) == 0
    good = (after.value("scrapes_total", target="good", outcome="ok") or 0) - (
        before.value("scrapes_total", target="good", outcome="ok") or 0
    )
    assert good > sum(_failures(before, after, "good").values()), "the good one is held up by the others"
    assert set(_failures(before, after, "dns")) == {"dns"}
    assert "Traceback" not in watch.logged()
    assert most < memory + (120 << 20)
    assert watch.resident_bytes() < memory + (120 << 20), "what hostile pages took is given back"
    assert watch.descriptors() <= descriptors + 8


def _judge(fault: Fault, before: Metrics, during: Metrics) -> None:
    failures = _failures(before, during, fault.name)
    assert set(failures) <= {*fault.kinds, "timeout"}, fault.text
    assert bool(failures) or not fault.kinds, f"{fault.text}: nothing was counted"
    if not fault.kinds:
        assert during.value("up", target=fault.name) == 1, fault.text
        usage = during.values("kv_cache_usage_ratio", target=fault.name)
        assert bool(usage) is fault.known, fault.text
        assert all(0 <= value <= 1 for value in usage), fault.text
