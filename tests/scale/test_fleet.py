"""A thousand sidecars in one real Prometheus: how many series, how much memory, how long the rules take.

Opt-in (`make scale`): it takes some minutes and two gigabytes. The page of each sidecar is one that kvwatch exported
of a saturated vLLM, under a name of its own and with counters that move.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.support.promtool import RULES
from tests.support.stack import Prometheus, answers, free_port, process
from tests.support.waiting import until

PAGE = Path(__file__).parents[1] / "golden" / "saturated.prom"
SIDECARS, INTERVAL_S, WATCHED_S = 1000, 30, 240


class Fleet:
    """The pages of sidecars by number; symptoms fire on one in `one_in` of them."""

    def __init__(self, one_in: int) -> None:
        self.one_in = one_in
        self.started = time.monotonic()
        self.parts: list[tuple[str, float | None]] = []
        moves = False
        for line in PAGE.read_text(encoding="utf-8").splitlines():
            if line.startswith("# TYPE"):
                moves = line.endswith((" counter", " histogram"))
            name, _, value = line.rpartition(" ")
            if line.startswith("#") or not moves:
                self.parts.append((line, None))
            else:
                self.parts.append((name, float(value)))
        self.target = re.search(r'target="([^"]+)"', PAGE.read_text(encoding="utf-8"))[1]  # type: ignore[index]

    def page(self, number: int) -> bytes:
        grown = 1 + (time.monotonic() - self.started) / 600
        lines = [
            line if value is None else f"{line} {value * grown:.3f}"
            for line, value in self.parts
            if not (number % self.one_in and line.startswith("kvwatch_symptom_evidence{"))
        ]
        text = "\n".join(lines).replace(f'target="{self.target}"', f'target="vllm-{number}"') + "\n"
        if number % self.one_in:
            text = re.sub(r"^(kvwatch_symptom_firing\{.*\}) 1(?:\.0)?$", r"\1 0", text, flags=re.MULTILINE)
        return text.encode()


@contextmanager
def served(fleet: Fleet) -> Iterator[int]:
    """The port at which ``/metrics?n=NUMBER`` is the page of a sidecar."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = fleet.page(int(parse_qs(urlsplit(self.path).query)["n"][0]))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@contextmanager
def watching(folder: Path, port: int) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes them all, and itself."""
    here = free_port()
    sidecars = {
        "job_name": "kvwatch",
        "static_configs": [{"targets": [f"sidecar-{number}:9477" for number in range(SIDECARS)]}],
        "relabel_configs": [
            {"source_labels": ["__address__"], "target_label": "instance"},
            {"source_labels": ["__address__"], "regex": r"sidecar-(\d+):.*", "target_label": "__param_n"},
            {"target_label": "__address__", "replacement": f"127.0.0.1:{port}"},
        ],
    }
    itself = {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{here}"]}]}
    every = {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"}
    document = {"global": every, "scrape_configs": [sidecars, itself], "rule_files": [str(RULES)]}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = (
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{here}",
    )
    url = f"http://127.0.0.1:{here}"
    with process(folder / "prometheus.log", *command):
        until("ready Prometheus", lambda: answers(f"{url}/-/ready"), 30)
        yield Prometheus(url)


@pytest.mark.scale
@pytest.mark.parametrize(("one_in", "most"), [(20, 1 / 5), (1, 1.0)], ids=["5% fire", "all fire"])
def test_one_prometheus_stands_a_thousand(
    one_in: int, most: float, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No evaluation is missed or fails, and on most days all rules take less than a fifth of their interval."""
    with served(Fleet(one_in)) as port, watching(tmp_path, port) as asked:
        until(
            "page of every sidecar", lambda: (asked.value('sum(up{job="kvwatch"})') or 0) >= SIDECARS, 120, 2
        )
        time.sleep(WATCHED_S)
        found = {
            "series": asked.value("prometheus_tsdb_head_series"),
            "memory_bytes": asked.value('process_resident_memory_bytes{job="prometheus"}'),
            "alerts": asked.value('count(ALERTS{alertstate="firing"})'),
            "missed": asked.value("sum(prometheus_rule_group_iterations_missed_total)"),
            "failed": asked.value("sum(prometheus_rule_evaluation_failures_total)"),
        }
        took = asked.query("prometheus_rule_group_last_duration_seconds")
    seconds = {one["metric"]["rule_group"].rpartition(";")[2]: float(one["value"][1]) for one in took}
    for name, value in (*found.items(), *seconds.items()):
        record_property(name, value)
        print(f"\n{name}: {value:,.3f}", end="")
    assert found["missed"] == found["failed"] == 0
    assert sum(seconds.values()) < most * INTERVAL_S
