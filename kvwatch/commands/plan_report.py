"""A plan, and a running server compared with it, as text and tables for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvwatch.capacity.request_lengths import CONCURRENCIES, memory_table
from kvwatch.capacity.units import GIB, gib, thousands
from kvwatch.commands.output import say
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.fits import PERCENTILE

if TYPE_CHECKING:
    from kvwatch.capacity import Plan
    from kvwatch.capacity.serving import ServerAdvice
    from kvwatch.capacity.sizing import Sizing

_WIDTH = 100
_NONE = "-"


def show(plan: Plan | None, advice: ServerAdvice | None) -> None:
    if plan is not None:
        _show_plan(plan)
    if advice is not None:
        if plan is not None:
            say("")
        for line in _advice(advice):
            if line.startswith("- "):
                _item(line[2:])
            else:
                say(line)


def _show_plan(plan: Plan) -> None:
    say(plan.layout.model.family)
    for name, value in _summary(plan):
        say(f"  {name:<26} {value}")
    say("\nStep by step:")
    for step in plan.steps:
        _item(step)
    _table(*_by_length(plan))
    if plan.variants:
        _table("\nOne change at a time:", *_side_by_side(plan))
    say("\nStart it with:")
    say(f"  {plan.serve}")
    say("\nNotes:")
    for warning in plan.warnings:
        _item(warning)


def _summary(plan: Plan) -> Iterable[tuple[str, str]]:
    layout, sizing, length = plan.layout, plan.sizing, plan.length
    yield "bytes per token, each GPU", thousands(layout.bytes_per_token_per_gpu)
    if layout.windowed_bytes_per_token_per_gpu:
        yield "  more inside windows", thousands(layout.windowed_bytes_per_token_per_gpu)
    if layout.bytes_per_token_total != layout.bytes_per_token_per_gpu:
        yield "bytes per token, all GPUs", thousands(layout.bytes_per_token_total)
    yield "cache dtype", f"{layout.dtype.name} ({layout.dtype.meaning}); model {layout.model.dtype}"
    if length:
        yield "one full request", f"{thousands(length)} tokens, {gib(layout.needed_bytes(length))}"
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
        for name, at in plan.lengths.items():
            yield f"{name} requests at once", f"{sizing.concurrency(at):.2f} of {thousands(at)} tokens"


def _by_length(plan: Plan) -> tuple[str, list[str], list[list[str]]]:
    """Memory by length and requests at once: title, heads and rows."""
    lengths, sizing = plan.table_lengths, plan.sizing
    needs = memory_table(plan.layout, lengths)
    unit, name = (GIB, "GiB") if max(map(max, needs)) >= GIB else (GIB >> 10, "MiB")
    marks = {at: name for name, at in plan.lengths.items()}
    memory = plan.budget.available if plan.budget else None
    heads = ["tokens", *(f"{count}×" for count in CONCURRENCIES), *(["at once"] if sizing else []), ""]
    rows = []
    for length, row in zip(lengths, needs, strict=True):
        cells = [f"{need / unit:,.2f}{'*' if memory is not None and need > memory else ' '}" for need in row]
        fits = [f"{sizing.concurrency(length):,.1f}"] if sizing else []
        named = [marks[length]] if length in marks else []
        if length == plan.length:
            named.append("max_model_len")
        rows.append([thousands(length), *cells, *fits, ", ".join(named)])
    if memory is not None:
        rows.append(["* does not fit"])
    return f"\n{name} on each GPU, by length and requests at once:", heads, rows


def _side_by_side(plan: Plan) -> tuple[list[str], list[list[str]]]:
    heads = ["", "bytes per token", "one full request", "KV memory", "tokens", "full requests"]
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


def _advice(advice: ServerAdvice) -> Iterator[str]:
    """The running server as lines; items begin with a dash."""
    server = advice.server
    several = f", {server.engines} engines; numbers are of the busiest" if server.engines > 1 else ""
    yield f"{server.url}: {server.model_name}{several}"
    yield from _lengths(advice)
    yield from _cache(advice)
    running, waiting = (
        "unknown" if one is None else f"{one:.0f}" for one in (server.running, server.waiting)
    )
    used = f", KV cache usage {server.usage:.0%}" if server.usage is not None else ""
    yield f"- now: {running} running, {waiting} waiting{used}"
    if server.regime not in {Regime.UNKNOWN, Regime.DOWN}:
        yield f"- regime: {server.regime}"
    if server.served.total:
        yield "Effect of each change:"
        yield from (f"- {one.change}: {one.effect}" for one in advice.options)
    yield f"Helps most now: {advice.helps_most or 'nothing'} ({advice.why})"


def _lengths(advice: ServerAdvice) -> Iterator[str]:
    server, total = advice.server, advice.server.served.total
    limit = "unknown" if server.max_model_len is None else thousands(server.max_model_len)
    if not total:
        yield f"- too few requests finished ({server.served.count:.0f}) to know their lengths; max_model_len {limit}"
        return
    bounds = server.served.at_least
    lengths = ", ".join(
        f"{name} {'≥ ' if name in bounds else ''}{thousands(at)}" for name, at in total.items()
    )
    times = f", {server.max_model_len / total['p99']:.1f} × p99" if server.max_model_len else ""
    yield (
        f"- lengths of {thousands(server.served.count)} requests, prompt and output: {lengths} tokens;"
        f" max_model_len {limit}{times}"
    )
    if server.fits is not None:
        bound, least = ("at most ", "≥ ") if server.fits.lower_bound else ("", "")
        yield (
            f"- {bound}{server.fits.requests} such requests fit at once, {PERCENTILE} % of the time (each holds"
            f" {least}{thousands(server.fits.at_tokens)} tokens on average in flight)"
        )
        if advice.plan is None:
            yield "- assumed: every token needs the same memory. For windows or recurrent states, give --config"
    elif server.hybrid:
        yield "- unknown without --config: requests that fit at once. This model also keeps recurrent states"
    else:
        yield f"- unknown: requests that fit at once ({server.capacity_reason})"


def _cache(advice: ServerAdvice) -> Iterator[str]:
    server = advice.server
    if server.capacity_tokens is not None:
        full = f", {server.max_concurrency:.2f} full requests" if server.max_concurrency else ""
        yield f"- vLLM reports a cache of {thousands(server.capacity_tokens)} tokens{full}"
    if advice.planned is not None and server.capacity_tokens:
        tokens, fit = advice.planned
        off = tokens / server.capacity_tokens - 1
        yield f"- planned from its blocks: {thousands(tokens)} tokens, {fit:.2f} full requests ({off:+.1%})"
    if advice.contradiction:
        yield f"- --config is another model's, or the server has other options: {advice.contradiction}"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns: text aligned left, numbers right. A row of one cell is a remark."""
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
