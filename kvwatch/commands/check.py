"""`kvwatch check`: what is wrong with a server now?"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kvwatch.commands import live, options, text
from kvwatch.commands.output import print_json, say
from kvwatch.commands.verdict import Conclusion, conclude
from kvwatch.commands.watch import Watch
from kvwatch.core import report
from kvwatch.core.percentiles import LATENCIES, labelled
from kvwatch.core.pipeline import next_pace
from kvwatch.core.symptoms import BY_ID
from kvwatch.settings import Settings, TargetSettings

HELP = "watch a server for a while and say what is wrong with it"
EPILOG = """\
examples:
  kvwatch check                               the server on localhost:8000, for half a minute
  kvwatch check gpu1:8000 --for 2m            longer: more can be told
  kvwatch check gpu1:8000 --json | jq '.verdict, .limited, .findings'

Findings have windows of a minute and more: for a verdict that rests on them watch for 2m.

exit codes:
  0  fine: everything that matters could be told, and nothing is wrong
  1  findings, or something on the way to one: a symptom that is pending (it holds already, but not yet for as long
     as it takes to be sure), or requests were held back for more than half of the time
  2  unknown: the server can't be reached, what it shows is not enough to tell, or it was watched for less than 10 s;
     or a setting is wrong
"""
_PATIENCE_S = 5.0
"""How long a server may give nothing at the start before there is no point in waiting."""
_SETTINGS = ("thresholds", "disabled", "spellings", "aliases", "min_observations")
_TITLES = {"fine": "Fine", "findings": "Findings", "pending": "On the way", "unknown": "Unknown"}
_TTFT = LATENCIES["time_to_first_token_seconds"]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=options.seconds,
        default=30.0,
        help="how long to watch, as 30s, 5m, 1h; at least 10s (default: 30s)",
    )
    live.add(parser, *_SETTINGS)
    options.add_progress(parser)
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    settings, target = live.settings_of(args)
    watch = Watch(target.name, settings.policy(target))
    asyncio.run(_watch(args, settings, target, watch))
    found = conclude(watch)
    if args.json:
        print_json(as_data(watch, found))
    else:
        _print(watch, target, found)
    return found.code


async def _watch(args: argparse.Namespace, settings: Settings, target: TargetSettings, watch: Watch) -> None:
    from tqdm import tqdm

    total = live.count(args.seconds, settings)
    with tqdm(
        total=total, unit=" scrapes", disable=options.no_bar(args), file=sys.stderr, leave=False
    ) as bar:
        async with live.stopped_by_signals() as stop:
            async for now, outcome in live.scrapes(
                target, settings, stop, seconds=args.seconds, pace=lambda at: next_pace(watch.state, at)
            ):
                watch.take(outcome, now)
                regimes = sorted({str(engine.regime) for engine in watch.state.engines.values()})
                bar.set_postfix_str(", ".join(regimes), refresh=False)
                bar.update()
                if watch.good is None and watch.duration_s >= _PATIENCE_S:
                    return


def as_data(watch: Watch, found: Conclusion) -> dict[str, Any]:
    return watch.as_data() | {
        "verdict": found.word,
        "exit_code": found.code,
        "why": found.why,
        "findings": watch.findings(),
        "pending": [report.identity(key) | {"symptom": name} for key, name in watch.pending()],
        "limited": [one.as_data() for one in found.limited],
        "unknown": [
            report.identity(key) | {"symptom": name, "reason": reason}
            for key, name, reason in watch.unknown()
        ],
    }


def _print(watch: Watch, target: TargetSettings, found: Conclusion) -> None:
    say(f"{target.url}: {text.scrapes(watch.samples, watch.duration_s, watch.failures)}")
    say(f"Time per regime: {text.shares(watch.regimes())}")
    for engine in (watch.good or watch.state).engines.values():
        say(f"\n{text.engine(engine.key)}, now {engine.regime}")
        for name, value in _numbers(report.engine(engine)):
            say(f"  {name:<24} {value}")
    _print_gpus(watch)
    for one in watch.findings():
        say(f"\n{text.finding(one)}")
    pending = watch.pending()
    if pending:
        say(
            "\nPending (they hold already, but not yet for as long as it takes to be sure; watch longer with --for):"
        )
        for key, name in pending:
            say(f"  {name} on {text.engine(key)}: {BY_ID[name].title}")
    if found.limited:
        say("\nOn the way:")
        for limited in found.limited:
            say(f"  {text.engine(limited.key)}: {limited.text}")
    _print_unknown(watch)
    say(f"\n{_TITLES[found.word]}: {found.why}")


def _print_gpus(watch: Watch) -> None:
    """Each GPU in a line; nothing where none is read."""
    gpus = report.gpus(watch.state)["gpus"]
    if gpus:
        say("")
    for gpu in gpus:
        parts = (
            ("SMs active", gpu["sm_active_ratio"]),
            ("memory active", gpu["dram_active_ratio"]),
            ("utilisation", gpu["utilization_ratio"]),
        )
        known = ", ".join(f"{name} {value:.0%}" for name, value in parts if value is not None)
        say(f"GPU {gpu['gpu']:<22} {known or 'nothing of its activity is read'}")


def _print_unknown(watch: Watch) -> None:
    """What could not be told and why; of which engines, where there are several."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for key, name, reason in watch.unknown():
        by_reason.setdefault((name, reason), []).append(text.engine(key))
    if by_reason:
        say("\nCould not be told:")
    for (name, reason), where in by_reason.items():
        on = f" on {', '.join(where)}" if len(watch.state.engines) > 1 else ""
        say(f"  {name}{on}: {reason}")


def _numbers(engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The numbers that people ask for first, each with its value or why there is none."""
    signals, derived = engine["signals"], engine["derived"]

    def told(name: str, unit: str = "") -> str:
        value = derived.get(name, signals.get(name))
        if value is None:
            return f"unknown: {engine['unknown'].get(name) or engine['missing'].get(name) or 'not exposed'}"
        more = "≥ " if name in engine["at_least"] else ""
        doubt = f" (not trusted: {engine['untrusted'][name]})" if name in engine["untrusted"] else ""
        return f"{more}{value:.0%}{doubt}" if unit == "%" else f"{more}{report.number(value)}{unit}{doubt}"

    yield "KV usage", told("kv_cache_usage_ratio", "%")
    yield "requests", f"{told('requests_running')} running, {told('requests_waiting')} waiting"
    yield "KV demand", f"{told('kv_cache_demand_ratio')} (1 is exactly full)"
    yield "cache-pressure score", told("cache_pressure_score")
    for part in ("occupancy", "queueing", "preemption"):
        yield f"  {part}", told(f"cache_pressure_{part}_ratio")
    yield "prefix hit ratio", told("prefix_cache_hit_ratio", "%")
    yield "prompt tokens", told("prompt_tokens_per_second", "/s")
    yield "generated tokens", told("generation_tokens_per_second", "/s")
    for quantile in (0.5, 0.95):
        yield f"TTFT p{quantile * 100:g}", told(labelled(_TTFT, quantile), " s")
