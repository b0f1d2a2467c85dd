"""Watches a real kvwatch beside a live vLLM for a while: memory and file descriptors, as numbers and as a plot.

    .venv/bin/python tests/tools/soak.py http://localhost:8000 --for 1800 -o soak/

writes `soak.csv` (seconds, resident bytes, file descriptors, processor seconds) and `soak.svg`. kvwatch is scraped
every 15 s meanwhile, as by a Prometheus, and its page is opened once a minute.
"""

from __future__ import annotations

import argparse
import csv
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

EVERY_S = 5.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")

Row = tuple[float, int, int, float]
"""Seconds since the start, resident bytes, open file descriptors, processor seconds."""


def sample(pid: int, began: float) -> Row:
    process = Path(f"/proc/{pid}")
    resident = int((process / "statm").read_text().split()[1]) * _PAGE
    words = (process / "stat").read_text().rpartition(")")[2].split()
    busy = (int(words[11]) + int(words[12])) / _TICK
    return time.monotonic() - began, resident, len(list((process / "fd").iterdir())), busy


def watch(target: str, seconds: float, log: Path) -> list[Row]:
    """Runs kvwatch beside a target, and samples it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ("-m", "kvwatch", "run", "--host", "127.0.0.1", "--port", str(port), "--targets", target)
    rows: list[Row] = []
    with log.open("wb") as out, subprocess.Popen((sys.executable, *command), stderr=out) as process:
        began = time.monotonic()
        try:
            time.sleep(EVERY_S)
            while time.monotonic() < began + seconds and process.poll() is None:
                rows.append(sample(process.pid, began))
                if len(rows) % 3 == 0:
                    _open(f"http://127.0.0.1:{port}/metrics")
                if len(rows) % 12 == 0:
                    _open(f"http://127.0.0.1:{port}/")
                time.sleep(EVERY_S)
        finally:
            process.terminate()
    return rows


def _open(url: str) -> None:
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310 - of our own process
            answer.read()
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)


def plot(rows: Sequence[Row], title: str) -> str:
    """Memory and descriptors over time, one above the other, as SVG."""
    memory = [(row[0], row[1] / (1 << 20)) for row in rows]
    files = [(row[0], float(row[2])) for row in rows]
    panels = _panel(memory, "resident memory, MiB", 40) + _panel(files, "open file descriptors", 250)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 450" font-family="sans-serif" font-size="12">'
        f'<rect width="800" height="450" fill="white"/><text x="60" y="20" font-size="14">{title}</text>'
        f"{panels}</svg>\n"
    )


def _panel(points: Sequence[tuple[float, float]], title: str, top: int) -> str:
    width, height, left = 700, 150, 60
    last, most = points[-1][0], max(1.0, 1.2 * max(value for _, value in points))
    path = " ".join(
        f"{left + width * t / last:.1f},{top + 20 + height * (1 - value / most):.1f}" for t, value in points
    )
    lines = [f'<text x="{left}" y="{top + 12}">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        y = top + 20 + height * (1 - share)
        lines.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#ccc"/>')
        lines.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{most * share:.0f}</text>')
    for minute in range(0, int(last / 60) + 1, max(int(last / 600), 1)):
        x = left + width * minute * 60 / last
        lines.append(f'<text x="{x:.0f}" y="{top + height + 36}" text-anchor="middle">{minute} min</text>')
    return "".join(lines) + f'<polyline points="{path}" fill="none" stroke="#0b6" stroke-width="1.5"/>'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", metavar="URL", help="where the vLLM is")
    parser.add_argument("--for", dest="seconds", type=float, default=1800.0, metavar="SECONDS")
    parser.add_argument("-o", "--output", type=Path, default=Path("soak"), metavar="FOLDER")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows = watch(args.url, args.seconds, args.output / "kvwatch.log")
    with (args.output / "soak.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("seconds", "resident_bytes", "file_descriptors", "cpu_seconds"), *rows])
    title = f"kvwatch beside {args.url} for {rows[-1][0] / 60:.0f} min"
    (args.output / "soak.svg").write_text(plot(rows, title), encoding="utf-8")
    late = [row for row in rows if row[0] > rows[-1][0] / 3]
    print(
        f"memory {late[0][1] / 2**20:.1f} MiB after a third, {late[-1][1] / 2**20:.1f} MiB at the end, at most"
        f" {max(row[1] for row in rows) / 2**20:.1f} MiB; file descriptors {min(row[2] for row in late)} to"
        f" {max(row[2] for row in late)}; processor {rows[-1][3] / rows[-1][0]:.2%} of a core"
    )


if __name__ == "__main__":
    main()
