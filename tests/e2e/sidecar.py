"""A real kvwatch as a process of its own, whose wall clock can be set, and what it tells of itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.stack import free_port, kvwatch
from tests.support.waiting import until

_SAMPLE = re.compile(r"kvwatch_(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')

#: Loaded by the interpreter before kvwatch: the time of day is off by what a file says. Monotonic time can't be set.
_SITE = """
import os, time
real, path = time.time, os.environ["TIME_OFF_BY"]
def off() -> float:
    with open(path) as file:
        return real() + float(file.read() or 0)
time.time = off
"""


@dataclass(frozen=True)
class Metric:
    name: str
    labels: dict[str, str]
    value: float


class Metrics(list[Metric]):
    """A page of kvwatch's own metrics."""

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample of these labels; None if there is none."""
        return next(iter(self.values(name, **labels)), None)

    def values(self, name: str, **labels: str) -> list[float]:
        return [one.value for one in self if one.name == name and labels.items() <= one.labels.items()]

    def of(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The samples of these labels, by one more."""
        return {
            one.labels[label]: one.value
            for one in self
            if one.name == name and labels.items() <= one.labels.items()
        }


#: What is read of a page, which may have a hundred thousand lines.
_READ = tuple(
    f"kvwatch_{name}"
    for name in (
        "up",
        "scrapes_total",
        "poll",
        "kv_cache_usage_ratio",
        "requests_running",
        "generation_tokens_total",
        "engine_restarts_total",
        "engines",
        "regime_seconds_total",
        "data_age_seconds",
        "config_",
        "symptom_firing",
        "symptom_since",
        "startup_verdict",
        "process_",
    )
)


def parsed(page: str) -> Metrics:
    """The samples of a page, as far as tests ask for them."""
    found = Metrics()
    for line in page.splitlines():
        if not line.startswith(_READ):
            continue
        if sample := _SAMPLE.fullmatch(line):
            labels = {one["name"]: one["value"] for one in _LABEL.finditer(sample["labels"] or "")}
            found.append(Metric(sample["name"], labels, float(sample["value"])))
    return found


@dataclass
class Sidecar:
    """One that runs. `slowest_s` is how long the slowest answer of `/metrics` took so far."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    config: Path
    clock: Path
    slowest_s: float = 0.0

    def metrics(self) -> Metrics:
        began = time.monotonic()
        answer = httpx.get(f"{self.url}/metrics", timeout=60)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        assert answer.status_code == 200
        return parsed(answer.text)

    def logged(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def set_clock(self, off_by_s: float) -> None:
        """Sets its time of day, relative to the right one."""
        self.clock.write_text(str(off_by_s), encoding="utf-8")

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def resident_bytes(self) -> int:
        """Its memory at present."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def sidecar(folder: Path, config: str, *arguments: str, scheme: str = "http") -> Iterator[Sidecar]:
    """`kvwatch run` with a settings file, once it serves."""
    file, clock, site = folder / "kvwatch.toml", folder / "clock", folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    clock.write_text("0", encoding="utf-8")
    file.write_text(config, encoding="utf-8")
    port = free_port()
    env = os.environ | {"PYTHONPATH": f"{site}:{Path.cwd()}", "TIME_OFF_BY": str(clock)}
    words = ("run", "--config", str(file), "--host", "127.0.0.1", "--port", str(port), *arguments)
    with kvwatch(folder / "log", *words, env=env) as process:
        one = Sidecar(process, f"{scheme}://127.0.0.1:{port}", folder / "log", file, clock)
        until("kvwatch that serves", lambda: "kvwatch serves" in one.logged(), 60)
        yield one
