"""Asks a running server for `plan --url`: one or two scrapes, as `check` makes them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.serving import Advice, Server, served
from kvwatch.capacity.units import thousands
from kvwatch.commands import live
from kvwatch.commands.watch import Watch
from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.judge import max_model_len
from kvwatch.core.judgement.state import EngineState, State

if TYPE_CHECKING:
    from kvwatch.settings import Settings, TargetSettings

_SECONDS = 2.0
"""At most; the second scrape comes with what other endpoints of the server say."""


def ask(args: argparse.Namespace) -> Server:
    """What the server at `--url` says of its cache and its requests.

    Raises:
        PlanError: it can't be read, or has served nothing yet.
    """
    reached = {name: getattr(args, name, None) for name in live.TARGET_FLAGS}
    asked = argparse.Namespace(url=args.url, **reached)
    settings, target = live.settings_of(asked)
    watch = Watch(target.name, settings.policy(target))
    asyncio.run(_watch(settings, target, watch))
    state = watch.good
    if state is None:
        error = watch.state.error
        why = f"{error.kind}: {error.detail}" if error else "it was not scraped"
        raise PlanError(f"--url {target.url}: the server could not be read ({why})")
    if not state.engines:
        raise PlanError(f"--url {target.url}: vLLM shows no engine yet: it has served no request")
    return _server(target.url, state, settings.min_observations)


async def _watch(settings: Settings, target: TargetSettings, watch: Watch) -> None:
    async with live.stopped_by_signals() as stop:
        async for now, outcome in live.scrapes(target, settings, stop, seconds=_SECONDS):
            watch.take(outcome, now)
            if watch.good is not None and watch.good.facts is not None:
                return


def _server(url: str, state: State, least: float) -> Server:
    """The engines of one model as one server: lengths of all of them, and the gauges of the busiest."""
    engines = list(state.engines.values())
    name = engines[0].key.model_name
    alike = [engine for engine in engines if engine.key.model_name == name]
    busiest = max(alike, key=_load)
    snapshot, config = busiest.snapshot, busiest.snapshot.config
    tokens, reason = capacity_tokens(snapshot)
    longest = max_model_len(state, busiest)
    return Server(
        url=url,
        model_name=name,
        engines=len(alike),
        served=served([engine.raw_histograms for engine in alike], least),
        max_model_len=None if longest is None else int(longest),
        block_size=None if config.block_size is None else int(config.block_size),
        num_blocks=None if config.num_gpu_blocks is None else int(config.num_gpu_blocks),
        cache_dtype=config.cache_dtype,
        capacity_tokens=tokens,
        capacity_reason=reason,
        max_concurrency=config.kv_cache_max_concurrency,
        hybrid=config.hybrid,
        running=snapshot.number("requests_running"),
        waiting=snapshot.number("requests_waiting"),
        usage=snapshot.number("kv_cache_usage_ratio"),
        demand=busiest.derived.get("kv_cache_demand_ratio"),
        regime=busiest.regime,
    )


def _load(engine: EngineState) -> float:
    return (engine.snapshot.number("requests_running") or 0.0) + (
        engine.snapshot.number("requests_waiting") or 0.0
    )


def lines(advice: Advice) -> Iterator[str]:
    """The advice in words; items begin with a dash."""
    server, served_ = advice.server, advice.server.served
    several = f", {server.engines} engines; numbers are of the busiest" if server.engines > 1 else ""
    yield f"{server.url}: {server.model_name}{several}"
    yield from _lengths(advice)
    yield from _cache(advice)
    now = f"- now: {_told(server.running)} running, {_told(server.waiting)} waiting"
    yield now + (f", cache {server.usage:.0%} used" if server.usage is not None else "")
    if server.regime not in {Regime.UNKNOWN, Regime.DOWN}:
        yield f"- regime: {server.regime}"
    if served_.total:
        yield "What each change would do:"
        yield from (f"- {one.change}: {one.effect}" for one in advice.options)
    yield f"Helps most now: {advice.helps_most or 'nothing'}: {advice.why}"


def _lengths(advice: Advice) -> Iterator[str]:
    server, total = advice.server, advice.server.served.total
    limit = "unknown" if server.max_model_len is None else thousands(server.max_model_len)
    if not total:
        yield f"- {server.served.count:.0f} requests served: too few to tell their lengths; max_model_len {limit}"
        return
    parts = [
        f"{name} {'≥ ' if name in server.served.at_least else ''}{thousands(at)}"
        for name, at in total.items()
    ]
    yield (
        f"- lengths of {thousands(server.served.count)} requests, prompt and output: {', '.join(parts)} tokens;"
        f" max_model_len {limit}"
        + (f", {server.max_model_len / total['p99']:.1f} × p99" if server.max_model_len else "")
    )
    if advice.fits:
        fits = ", ".join(f"{count:,.1f} of {name}" for name, count in advice.fits.items())
        yield f"- such requests fit at once: {fits}"
    elif server.hybrid:
        yield "- how many fit at once can't be told without --config: this model keeps states besides tokens"
    else:
        yield f"- how many fit at once can't be told: {server.capacity_reason}"
    if advice.plan is None and advice.fits:
        yield "- taken that every token takes the same; for a model with windows or states give --config"


def _cache(advice: Advice) -> Iterator[str]:
    server = advice.server
    if server.capacity_tokens is not None:
        at_once = f", {server.max_concurrency:.2f} full requests" if server.max_concurrency else ""
        yield f"- vLLM says of its cache: {thousands(server.capacity_tokens)} tokens{at_once}"
    if advice.planned is not None and server.capacity_tokens:
        tokens, fit = advice.planned
        off = tokens / server.capacity_tokens - 1
        yield f"- planned from its blocks: {thousands(tokens)} tokens, {fit:.2f} full requests ({off:+.1%})"


def _told(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"
