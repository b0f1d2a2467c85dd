"""Pictures of the dashboards, before anything is imported into a Grafana::

    make preview        or: python -m tests.dashboards.preview [FOLDER]

A real Prometheus is filled by kvwatch from recordings and asked the queries of the rendered JSON; each panel is drawn
at its place on the grid. It shows numbers, words, colours, thresholds, legends and what is empty; it is no Grafana,
so fonts and details are not those of one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.dashboards.filling import Filled, Watched, facts_of, filled
from tests.dashboards.grafana import FOLDER, load, variables
from tests.dashboards.preview.answers import View
from tests.dashboards.preview.drawing import picture

SATURATED = "0.32.0--c-kv-saturation"
#: For the fleet: servers by what they are called there.
FLEET = {
    "chat-a": SATURATED,
    "chat-b": "0.20.2--c-kv-saturation",
    "chat-c": "0.13.0--c-kv-saturation",
    "search-a": "0.32.0--e-shared-prefix",
    "search-b": "0.32.0--d-queue-no-cache-pressure",
    "batch-old": "0.8.5-v0--c-kv-saturation",
    "batch-new": "0.32.0--b-healthy",
    "batch-lost": "0.32.0--o-engine-killed",
}
#: The saturation ends 10 s before the recording; "now" is while it lasts.
BEFORE_END = 13.0


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    servers = [
        Watched(
            f"{name}:9477",
            name,
            recording,
            facts_of(recording, recording.partition("--")[0].removesuffix("-v0")),
        )
        for name, recording in FLEET.items()
    ]
    with tempfile.TemporaryDirectory() as data, filled(Path(data), servers, every_s=1.0) as given:
        one = {"instance": "chat-a:9477", "target": "chat-a"}
        _draw(given, "server", folder, 90, one)
        _draw(given, "fleet", folder, 90, {})
        both = {f"{name}{suffix}": value for name, value in one.items() for suffix in ("_a", "_b")}
        _draw(given, "experiment", folder, 25, both | {"b_earlier_by": "70s"})


def _draw(given: Filled, name: str, folder: Path, seconds: int, chosen: dict[str, str]) -> None:
    board = load(FOLDER / f"kvwatch-{name}.json")
    end = given.end - BEFORE_END
    values = variables(board, chosen, __rate_interval="8s", __range=f"{seconds}s")
    path = folder / f"{name}.png"
    picture(board, View(given, end - seconds, end, 1.0, values | {"shown_model": "tiny-llama"}), path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(255, method=Image.Quantize.MAXCOVERAGE, kmeans=3).save(
            path, optimize=True
        )
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "preview")
