"""Real processes for end-to-end tests: started on free ports, waited for, and ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.waiting import until


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether the URL answers 200 now."""
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def process(
    log: Path, *command: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A running command whose output goes to `log`; asked to end, then made to, on leaving."""
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
        )
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


@contextmanager
def kvwatch(
    log: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The real kvwatch, as a process of its own."""
    with process(log, sys.executable, "-m", "kvwatch", *arguments, env=env) as running:
        yield running


@contextmanager
def prometheus_process(folder: Path, target: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real Prometheus as a process, that only scrapes `target` (host:port), every second."""
    config = folder / "scraping.yml"
    scrape = {"job_name": "vllm", "static_configs": [{"targets": [target]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    command = (
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'scraped'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    )
    with process(folder / "scraping.log", *command) as running:
        yield running


class Prometheus:
    """A real Prometheus to ask."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The instant vector that a query gives; fails on a query that Prometheus refuses."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": promql}, timeout=5).json()
        assert answer["status"] == "success", f"{promql}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, promql: str) -> float | None:
        """The number that a query of one series gives; None while it gives none."""
        found = self.query(promql)
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus(
    folder: Path,
    target: str,
    *,
    interval: str = "1s",
    rules: Path | None = None,
    alertmanager: str = "",
    labels: Mapping[str, str] | None = None,
    resend: str = "1m",
    lookback: str = "5m",
) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes `target` and judges `rules` every `interval`, and tells `alertmanager`.

    Addresses are host:port; `labels` go with all that it tells others, again after `resend`. A sample stands for
    `lookback` unless a newer one, or the end of its series, was scraped.
    """
    port = free_port()
    document = {
        "global": {
            "scrape_interval": interval,
            "evaluation_interval": interval,
            "external_labels": dict(labels or {}),
        },
        "scrape_configs": [{"job_name": "kvwatch", "static_configs": [{"targets": [target]}]}],
        "rule_files": [str(rules)] if rules else [],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
        },
    }
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = (
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--rules.alert.resend-delay={resend}",
        f"--query.lookback-delta={lookback}",
    )
    url = f"http://127.0.0.1:{port}"
    with process(folder / "prometheus.log", *command):
        until("ready Prometheus", lambda: answers(f"{url}/-/ready"), 30)
        yield Prometheus(url)
