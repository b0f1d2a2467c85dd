"""Draws what requests of each length take, as SVG or PNG. Needs matplotlib, which nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.request_lengths import CONCURRENCIES
from kvwatch.capacity.sizing import Layout
from kvwatch.capacity.units import GIB, gib, thousands

SUFFIXES = (".svg", ".png")
_POINTS = 200
_SHORTEST = 128
_COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")
_RED, _GREY = "#c0392b", "#666666"


def draw(path: Path, layout: Layout, memory: int | None, length: int, marks: Mapping[str, int]) -> None:
    """KV memory of a GPU against the length of requests, a curve for each number of them at once.

    `memory` is drawn as a line, `marks` (lengths by name) upright ones.

    Raises:
        PlanError: matplotlib is not installed, or the file can't be written.
    """
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra, and large
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import FuncFormatter, LogLocator  # noqa: PLC0415
    except ImportError:
        raise PlanError("--plot needs matplotlib: pip install '.[plot]'") from None
    top = max(length, *marks.values(), _SHORTEST * 2) if marks else max(length, _SHORTEST * 2)
    lengths = sorted({round(_SHORTEST * (top / _SHORTEST) ** (i / _POINTS)) for i in range(_POINTS + 1)})
    with rc_context({"svg.hashsalt": "kvwatch", "font.size": 9}):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes = figure.subplots()
        for count, colour in zip(CONCURRENCIES, _COLOURS, strict=True):
            label = "1 request" if count == 1 else f"{count} requests"
            needs = [layout.needed_bytes(one) * count / GIB for one in lengths]
            axes.plot(lengths, needs, color=colour, label=label)
        if memory is not None:
            axes.axhline(memory / GIB, color=_RED, label=f"KV cache: {gib(memory)}")
        for name, at in marks.items():
            axes.axvline(at, color=_GREY, linestyle=":", linewidth=1)
            axes.annotate(
                f"{name} {thousands(at)}",
                (at, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                ha="right",
                va="bottom",
                fontsize=8,
                color=_GREY,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
        axes.set_xlabel("tokens of a request, prompt and output")
        axes.set_ylabel("KV cache on each GPU")
        axes.set_title(layout.model.family, fontsize=10)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="upper left")
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise PlanError(f"--plot {path}: {error.strerror or error}") from None


def _short(value: float) -> str:
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


def _size(value: float) -> str:
    return f"{value:g} GiB" if value >= 1 else f"{value * 1024:g} MiB"
