"""The pictures: what stands in a panel is what its queries answer, in the words and colours of its options."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from PIL import Image, ImageColor

from kvwatch.mixin.dashboards.colours import ACT, REGIME
from tests.dashboards.filling import Watched, filled
from tests.dashboards.grafana import FOLDER, load, panels, variables
from tests.dashboards.preview.answers import View, lines
from tests.dashboards.preview.drawing import WIDE, picture
from tests.dashboards.preview.looks import colour, number, properties, text

BOARD = load(FOLDER / "kvwatch-server.json")


def panel(title: str) -> dict[str, object]:
    return next(one for one in panels(BOARD) if one["title"] == title)


def test_a_saturated_server_looks_like_one(tmp_path: Path) -> None:
    """The regime and the cause, in the numbers that are drawn, and the regime's colour in the picture."""
    with filled(tmp_path, [Watched("a:1", "chat", "0.32.0--c-kv-saturation")]) as given:
        view = View(given, given.end - 60, given.end - 13, 2.0, variables(BOARD))
        assert [(one.name, one.last) for one in view.ask(panel("Regime now"))] == [("kv_limited", 1.0)]
        fires = panel("Firing symptoms")
        found = lines(fires, view.ask(fires))
        assert found[0]["title"] == "KV cache thrashing"
        assert [line["why"] for line in found] == ["1", "2", "2", "2"]
        assert found[0]["page"] == "kvthrashing"
        shown = {**view.values, "shown_model": "tiny-llama"}
        first_row = {**BOARD, "panels": BOARD["panels"][:10]}
        path = tmp_path / "server.png"
        picture(first_row, View(given, view.start, view.end, 2.0, shown), path)
    with Image.open(path) as image:
        assert image.width == WIDE
        assert image.height > 600
        colours = {
            pixel for _, pixel in image.convert("RGB").crop((0, 100, 360, 260)).getcolors(1 << 16) or ()
        }
    assert ImageColor.getrgb(REGIME["kv_limited"]) in colours


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.953, "percentunit", "95.3%"),
        (0.0216, "s", "21.6 ms"),
        (19.5, "s", "19.5 s"),
        (4096, "locale", "4,096"),
        (4096, "short", "4.1 K"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (83, "dtdurations", "1 min 23 s"),
        (math.inf, "s", "∞"),
    ],
)
def test_units(value: float, unit: str, said: str) -> None:
    assert number(value, unit) == said


def test_words_and_colours_of_values() -> None:
    """Thresholds, mapped words, and no number where there was no traffic."""
    score = properties(panel("Cache-pressure score"), "worst engine")
    assert colour(0.6, score) == ACT != colour(0.4, score)
    assert text(math.nan, score) == "No traffic"
    trusted = properties(panel("Can the hit rate be trusted?"), "least trusted engine")
    assert (text(0.0, trusted), text(1.0, trusted)) == ("No", "Yes")
