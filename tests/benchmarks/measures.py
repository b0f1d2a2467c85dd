"""What `make bench` measures, each a comparison of things that ran side by side or in turn.

Processor time, not time on a clock, wherever that is what is meant: other programs on the machine make everything
late, but hardly dearer. Of things done in turn the cheapest of several turns counts.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx

from tests.benchmarks.costs import cpu_s, rss_mib, watched
from tests.benchmarks.plot import drawn
from tests.benchmarks.rows import HISTORY, Row
from tests.benchmarks.test_parse import BUDGET, against_stock
from tests.support.replica.running import ROOT, replica
from tests.support.stack import answers, free_port, kvwatch, process, prometheus_process
from tests.support.waiting import until

ENGINES = (1, 2, 4, 8, 16, 32, 64)
_WARM_UP_S = 8.0


def parsing(turns: int = 3) -> Iterator[Row]:
    """A full page of eight engines, read and normalised, against the stock parser alone."""
    stock, ours = against_stock(turns)
    detail = f"stock parser {stock * 1e3:.1f} ms, kvwatch {ours * 1e3:.2f} ms"
    yield Row(
        "parse and normalise, 8 engines: stock parser / kvwatch",
        stock / ours,
        "×",
        detail,
        BUDGET,
        at_least=True,
    )


def inside_the_server(engines: int, *, seconds: float = 300.0, turns: int = 2) -> Row:
    """Processor time of the watched server per watched second, narrowed against whole. Everything counts that kvwatch
    asks for in that time: buckets every 15 s, whole pages, facts."""
    narrow = whole = math.inf
    with replica(engines=engines) as server:
        for _ in range(turns):
            for mode, span in (("auto", seconds), ("never", seconds / 10)):
                found = watched([server.url], span, pid=server.process.pid, narrow=mode)
                cost = found.server_s / found.seconds
                narrow, whole = (min(narrow, cost), whole) if mode == "auto" else (narrow, min(whole, cost))
    return Row(
        f"cost inside the server, {engines} engine{'s' * (engines > 1)}: narrowed / whole",
        narrow / whole,
        "",
        f"narrowed {narrow * 1e3:.2f}, whole {whole * 1e3:.2f} ms of processor per watched second",
        0.2 if engines == 1 else 0.1,
    )


def beside_others(peers: Mapping[str, Path], seconds: float = 45.0) -> Iterator[Row]:
    """kvwatch, a real Prometheus and other watchers, all at once, each polling the same server."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        server = running.enter_context(replica())
        url, host = f"{server.url}/metrics", server.url.removeprefix("http://")
        mine = free_port()
        command = ("run", "--host=127.0.0.1", f"--port={mine}", f"--targets={url}", "--gpu=off")
        pids = {
            "kvwatch": running.enter_context(kvwatch(folder / "kvwatch.log", *command)).pid,
            "Prometheus": running.enter_context(prometheus_process(folder, host)).pid,
        }
        if "vmm" in peers:
            other = (
                str(peers["vmm"]),
                url,
                "--interval=1",
                f"--port={free_port()}",
                f"--db={folder / 'vmm.db'}",
            )
            pids["vllm-metrics-monitor"] = running.enter_context(process(folder / "vmm.log", *other)).pid
        if "vllm-doctor" in peers:
            doctor = (str(peers["vllm-doctor"]), "diagnose", url, "--watch")
            pids["vllm-doctor"] = running.enter_context(process(folder / "doctor.log", *doctor)).pid
        until("answer of kvwatch", lambda: answers(f"http://127.0.0.1:{mine}/metrics"), 60)
        time.sleep(_WARM_UP_S)
        before = {who: cpu_s(pid) for who, pid in pids.items() if Path(f"/proc/{pid}/stat").exists()}
        time.sleep(seconds)
        spent, memory = {}, {}
        for who, cpu in before.items():
            try:
                spent[who], memory[who] = (cpu_s(pids[who]) - cpu) / seconds, rss_mib(pids[who])
            except (OSError, ValueError):
                print(f"{who} ended by itself", file=sys.stderr)
    for who in spent.keys() - {"kvwatch"}:
        paced = ", its own pace of 5 s" if who == "vllm-doctor" else ""
        yield Row(
            f"processor time beside {who}: kvwatch / it",
            spent["kvwatch"] / spent[who],
            "",
            f"kvwatch {spent['kvwatch'] * 1e3:.2f} ms/s and {memory['kvwatch']:.0f} MiB, "
            f"{who} {spent[who] * 1e3:.2f} ms/s and {memory[who]:.0f} MiB{paced}",
            1.0 if who == "Prometheus" else None,
        )


def serving(asks: int = 300) -> Iterator[Row]:
    """The start, and pages of kvwatch for eight engines while it polls."""
    with tempfile.TemporaryDirectory() as name, replica(engines=8) as server:
        first, spent = math.inf, 0.0
        took: list[float] = []
        for turn in range(4):
            port, began = free_port(), time.perf_counter()
            command = ("run", "--host=127.0.0.1", f"--port={port}", f"--targets={server.url}", "--gpu=off")
            mine = f"http://127.0.0.1:{port}/metrics"
            with kvwatch(Path(name) / f"{turn}.log", *command) as watcher:
                until("first page", partial(answers, mine), 60, every_s=0.01)
                first = min(first, time.perf_counter() - began)
                if turn < 3:
                    continue
                time.sleep(_WARM_UP_S)
                before = cpu_s(watcher.pid)
                with httpx.Client(timeout=60) as client:
                    for n in range(asks):
                        start = time.perf_counter()
                        client.get(mine).raise_for_status()
                        took.append(time.perf_counter() - start)
                        time.sleep(0.013 + 0.001 * (n % 7))
                spent = cpu_s(watcher.pid) - before
    took.sort()
    yield Row("start to the first page", first, "s", "best of four, on the clock", 1.5)
    page = f"{spent / asks * 1e3:.1f} ms of processor a page, polls included"
    detail = f"p50 {took[len(took) // 2] * 1e3:.1f} ms, {page}"
    yield Row("p99 of /metrics while polling, 8 engines", took[int(len(took) * 0.99)] * 1e3, "ms", detail, 20)


def an_hour() -> Iterator[Row]:
    """Resident memory of a process that watched eight engines for an hour, of a clock that is turned."""
    with replica(engines=8) as server:
        command = (sys.executable, "-m", "tests.benchmarks.hour", server.url)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    minutes = [float(one) for one in done.stdout.split()]
    detail = f"after 20, 40 and 60 minutes {', '.join(f'{one:.1f}' for one in minutes)} MiB"
    yield Row("resident memory after an hour, 8 engines", minutes[-1], "MiB", detail, 80)


def by_engines(seconds: float = 30.0) -> Iterator[Row]:
    """Processor time of kvwatch by engines of one server, and by servers of one engine; draws a graph."""
    engines, targets = {}, {}
    for count in ENGINES:
        with replica(engines=count) as server:
            runs = [watched([server.url], seconds, pid=server.process.pid) for _ in range(2)]
            engines[count] = min(run.own_s / run.seconds for run in runs) * 1e3
    with replica() as server:
        for count in (1, 8, 64):
            run = watched([server.url] * count, seconds, pid=server.process.pid)
            targets[count] = run.own_s / seconds * 1e3
    graph = HISTORY.parent / "engines.svg"
    graph.parent.mkdir(exist_ok=True)
    graph.write_text(
        drawn({"engines of one server": engines, "servers of one engine": targets}), encoding="utf-8"
    )
    told = "; ".join(f"{count}: {cost:.1f}" for count, cost in engines.items())
    growth = (engines[64] / 64) / (engines[8] / 8)
    detail = f"ms of processor a second by engines: {told}; {os.path.relpath(graph, ROOT)}"
    yield Row("cost of an engine, 64 of a server / 8 of a server", growth, "", detail, 1.3)
    detail = f"{targets[1]:.1f} ms a second for one server, {targets[64]:.0f} for 64"
    yield Row("cost of a server, 64 / 1 watched", targets[64] / 64 / targets[1], "", detail, 1.3)
