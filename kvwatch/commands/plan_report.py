"""A plan in words and tables for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvwatch.capacity import request_lengths
from kvwatch.capacity.units import GIB, gib, thousands
from kvwatch.commands.output import say

if TYPE_CHECKING:
    from kvwatch.capacity.kv_plan import Plan
    from kvwatch.capacity.sizing import Sizing

_WIDTH = 100
_NONE = "-"


def show(plan: Plan) -> None:
    say(plan.layout.model.family)
    for name, value in _summary(plan):
        say(f"  {name:<26} {value}")
    say("\nStep by step:")
    for step in plan.steps:
        _item(step)
    unit = "GiB" if max(map(max, request_lengths.table(plan.layout, plan.rungs))) >= GIB else "MiB"
    _table(
        f"\n{unit} on each GPU, by length and requests at once:",
        *_by_length(plan, GIB if unit == "GiB" else GIB >> 10),
    )
    if plan.variants:
        _table("\nOne change at a time:", *_side_by_side(plan))
    say("\nTo start it:")
    say(f"  {plan.serve}")
    say("\nTo know:")
    for warning in plan.warnings:
        _item(warning)


def show_live(lines: Iterable[str], *, first: bool) -> None:
    """What a running server says, after the plan or alone; items begin with a dash."""
    if not first:
        say("")
    for line in lines:
        if line.startswith("- "):
            _item(line[2:])
        else:
            say(line)


def _summary(plan: Plan) -> Iterable[tuple[str, str]]:
    layout, sizing, length = plan.layout, plan.sizing, plan.length
    yield "bytes a token, each GPU", thousands(layout.bytes_per_token_per_gpu)
    if layout.windowed_bytes_per_token_per_gpu:
        yield "  more within windows", thousands(layout.windowed_bytes_per_token_per_gpu)
    if layout.bytes_per_token_total != layout.bytes_per_token_per_gpu:
        yield "bytes a token, all GPUs", thousands(layout.bytes_per_token_total)
    yield "cache type", f"{layout.dtype.name} ({layout.dtype.meaning}); model {layout.model.dtype}"
    if length:
        yield "a full request", f"{thousands(length)} tokens, {gib(layout.needed_bytes(length))}"
    if plan.seqs and length:
        yield f"{plan.seqs} full requests", gib(plan.seqs * layout.needed_bytes(length))
    if plan.budget is not None:
        yield "KV cache memory, each GPU", gib(plan.budget.available)
    if sizing is not None:
        yield (
            "capacity",
            f"{thousands(sizing.kv_cache_tokens)} tokens in {thousands(sizing.num_blocks)} blocks",
        )
        if sizing.max_concurrency is not None:
            yield "full requests at once", f"{sizing.max_concurrency:.2f}"
        for name, at in plan.served.items():
            yield f"{name} requests at once", f"{sizing.concurrency(at):.2f} of {thousands(at)} tokens"


def _by_length(plan: Plan, unit: int) -> tuple[list[str], list[list[str]]]:
    rungs = plan.rungs
    heads = ["tokens", *(f"{count}×" for count in request_lengths.CONCURRENCIES)]
    marks = {at: name for name, at in plan.served.items()}
    if plan.sizing is not None:
        heads.append("at once")
    heads.append("")
    memory = plan.budget.available if plan.budget else None
    rows = []
    for rung, row in zip(rungs, request_lengths.table(plan.layout, rungs), strict=True):
        cells = [f"{need / unit:,.2f}{'*' if memory is not None and need > memory else ' '}" for need in row]
        more = [f"{plan.sizing.concurrency(rung):,.1f}"] if plan.sizing is not None else []
        named = [marks[rung]] if rung in marks else []
        if rung == plan.length:
            named.append("max_model_len")
        rows.append([thousands(rung), *cells, *more, ", ".join(named)])
    if memory is not None:
        rows.append(["* does not fit"])
    return heads, rows


def _side_by_side(plan: Plan) -> tuple[list[str], list[list[str]]]:
    heads = ["", "bytes a token", "a full request", "KV memory", "tokens", "at once"]
    rows = []
    for one in plan.variants:
        length = one.layout.flags.max_model_len or plan.length
        sizing = one.sizing
        rows.append([
            one.change,
            thousands(one.layout.bytes_per_token_per_gpu),
            gib(one.layout.needed_bytes(length)) if length else _NONE,
            gib(sizing.memory) if sizing else _NONE,
            thousands(sizing.kv_cache_tokens) if sizing else _NONE,
            _at_once(sizing),
        ])  # fmt: skip
    return heads, rows


def _at_once(sizing: Sizing | None) -> str:
    if sizing is None or sizing.max_concurrency is None:
        return _NONE
    return f"{sizing.max_concurrency:.2f}{'' if sizing.fits else ' (does not start)'}"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of equal width, the first to the left, numbers to the right; a row of one cell is a remark."""
    say(title)
    full = [row for row in rows if len(row) == len(heads)]
    widths = [max(len(row[i]) for row in (heads, *full)) for i in range(len(heads))]
    for row in (heads, *rows):
        if len(row) != len(heads):
            say(f"  {row[0]}")
            continue
        first_left = not heads[0]
        cells = [
            cell.ljust(width)
            if (i == 0 and first_left) or (i == len(heads) - 1 and not heads[-1])
            else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say(("  " + "  ".join(cells)).rstrip())


def _item(text: str) -> None:
    for line in textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    ):
        say(line)
