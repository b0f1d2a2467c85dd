"""`kvwatch plan`: how many tokens and requests fit, before a server runs or while one does."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.commands import live, options
from kvwatch.commands.output import print_error, print_json, say
from kvwatch.settings.values import size

if TYPE_CHECKING:
    from kvwatch.capacity import Plan
    from kvwatch.capacity.serving import Server
    from kvwatch.core.judgement.state import State
    from kvwatch.settings import Settings, TargetSettings

HELP = "compute how many tokens and requests fit in the KV cache, and how to fit more"
EPILOG = """\
examples:
  kvwatch plan --config Llama-3.1-8B/config.json --gpu-memory 80GiB --lengths p50=900,p95=6k,p99=12k
                                              on an 80 GiB GPU, with the weights beside config.json
  kvwatch plan --layers 32 --kv-heads 8 --head-dim 128 --max-model-len 8192 --max-num-seqs 8
                                              from numbers: 128 KiB per token, 1 GiB per request, 8 GiB for eight
  kvwatch plan --url http://localhost:8000 --config config.json
                                              a running server: its request lengths and its cache
  kvwatch plan --config config.json --kv-cache-memory 30GiB --plot kv.svg

Flags have the names of vLLM's own. Sizes follow the code of vLLM 0.32 on NVIDIA GPUs. vLLM's own log has the last
word.

exit codes:
  0  a plan, and one request of full length fits (or no memory was given)
  1  it does not fit: vLLM would not start
  2  the model is unknown, a value is invalid, or the server can't be scraped
"""
_READ_S = 2.0
"""Longest time for reading a running server. The second scrape brings /version and /v1/models with it."""
_MIN_BYTES = 1 << 20
"""No GPU has less memory: a smaller number was meant in GiB."""


def add(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json, or its folder")
    model.add_argument(
        "--layers",
        type=_tokens,
        metavar="N",
        help="instead of --config: number of layers that keep every token",
    )
    model.add_argument("--kv-heads", type=_tokens, metavar="N", help="KV heads per layer")
    model.add_argument("--head-dim", type=_tokens, metavar="N", help="size of a head, in values")
    vllm = parser.add_argument_group("vLLM's options")
    for name, metavar, help_ in (
        ("tensor", "N", "GPUs that split each layer (default: 1)"),
        ("pipeline", "N", "groups of GPUs, each with a part of the layers (default: 1)"),
        ("decode-context", "N", "GPUs that split the tokens of a request (default: 1)"),
    ):
        vllm.add_argument(f"--{name}-parallel-size", type=_tokens, default=1, metavar=metavar, help=help_)
    for name, read, metavar, help_ in (
        (
            "--max-model-len",
            _length,
            "TOKENS",
            "longest request, for example 32768 or 32k (default: the model's)",
        ),
        ("--block-size", _tokens, "TOKENS", "tokens per block (default: vLLM's for the model)"),
        ("--max-num-batched-tokens", _tokens, "TOKENS", "tokens per step (default: vLLM's for the GPU)"),
        ("--max-num-seqs", options.requests, "REQUESTS", "requests that run at once"),
    ):
        vllm.add_argument(name, type=read, metavar=metavar, help=help_)
    vllm.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="TYPE",
        help="auto, fp8, fp8_ds_mla, int8_per_token_head, nvfp4, … (default: auto)",
    )
    vllm.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="matters only for models with a recurrent state (default: on)",
    )
    memory = parser.add_argument_group("memory of one GPU")
    sizes: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
        (
            "--kv-cache-memory",
            _bytes,
            "SIZE",
            "memory for the cache, for example 30GiB; vLLM logs it as available KV cache memory",
        ),
        (
            "--gpu-memory",
            _bytes,
            "SIZE",
            "instead: memory of the whole GPU, for example 80GiB; weights and overhead are subtracted",
        ),
        (
            "--gpu-memory-utilization",
            _share,
            "SHARE",
            "share of the GPU's memory that vLLM uses (default: 0.92, as in vLLM)",
        ),
        (
            "--weights",
            str,
            "SIZE|PATH",
            "size of the whole model, for example 16GiB, or its folder (default: the folder of --config)",
        ),
        ("--overhead", _bytes, "SIZE", "memory for activations and CUDA graphs (default: an estimate)"),
    )
    for name, read_, metavar, help_ in sizes:
        memory.add_argument(name, type=read_, metavar=metavar, help=help_)
    parser.add_argument_group("requests").add_argument(
        "--lengths",
        type=_lengths,
        metavar="P=TOKENS",
        help="lengths of requests, prompt plus output, for example p50=900,p95=6k,p99=12k",
    )
    server = parser.add_argument_group("a running server")
    server.add_argument(
        "--url", metavar="URL", help="a running server, to read its request lengths, cache and limits"
    )
    live.add_target_flags(server, but=("max_num_seqs", "gpus"))
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the plan, as .svg or .png (requires the extra plot)"
    )
    options.add_json(parser)


def main(args: argparse.Namespace) -> int:
    from kvwatch.capacity import PlanError

    try:
        return _run(args)
    except PlanError as error:
        print_error(str(error))
        return 2


def _run(args: argparse.Namespace) -> int:
    from kvwatch.capacity import PlanError, PlanRequest, plan
    from kvwatch.capacity.plot import SUFFIXES
    from kvwatch.capacity.serving import advise
    from kvwatch.commands import plan_report

    if args.plot is not None and args.plot.suffix not in SUFFIXES:
        raise PlanError(f"--plot {args.plot}: must end in {' or '.join(SUFFIXES)}")
    given = {one.name: getattr(args, one.name) for one in fields(PlanRequest) if hasattr(args, one.name)}
    request = PlanRequest(**given | {"lengths": args.lengths or {}})
    if not request.names_model:
        _refuse_without_model(args, request)
    server = None if args.url is None else _server(args)
    found = plan(replace(request, server=server)) if request.names_model else None
    advice = None if server is None else advise(server, found, args.max_num_seqs)
    if args.plot is not None:
        _draw(args.plot, found)
    if args.json:
        print_json((found.as_data() if found else {}) | ({"live": advice.as_data()} if advice else {}))
    else:
        plan_report.show(found, advice)
        if args.plot is not None:
            say(f"\nDrawn: {args.plot}")
    return 1 if found is not None and found.sizing is not None and not found.sizing.fits else 0


def _refuse_without_model(args: argparse.Namespace, request: object) -> None:
    """Rejects options that would have no effect: a server alone is judged by its own settings."""
    from kvwatch.capacity import PlanError, PlanRequest

    if args.url is None:
        raise PlanError(
            "nothing to plan: give --config FILE, --layers with --kv-heads and --head-dim, or --url URL"
        )
    for one in fields(PlanRequest):
        if one.name != "max_num_seqs" and getattr(request, one.name) != getattr(PlanRequest(), one.name):
            raise PlanError(f"--{one.name.replace('_', '-')} counts only with a model: give --config, too")


def _server(args: argparse.Namespace) -> Server:
    """The server at `--url`, from one or two scrapes.

    Raises:
        PlanError: it can't be read, or has served nothing yet.
    """
    from kvwatch.capacity import PlanError
    from kvwatch.capacity.serving import server_of
    from kvwatch.commands.watch import Watch

    reached = {name: getattr(args, name, None) for name in live.TARGET_FLAGS}
    settings, target = live.settings_of(argparse.Namespace(url=args.url, **reached))
    watch = Watch(target.name, settings.policy(target))

    async def scrape(settings: Settings, target: TargetSettings) -> State | None:
        async for now, outcome in live.scrapes(target, settings, seconds=_READ_S):
            watch.feed(outcome, now)
            if watch.good is not None and watch.good.facts is not None:
                break
        return watch.good

    state = asyncio.run(scrape(settings, target))
    if state is None:
        error = watch.state.error
        why = f"{error.kind}: {error.detail}" if error else "it was not scraped"
        raise PlanError(f"--url {target.url}: the server could not be scraped ({why})")
    if not state.engines:
        raise PlanError(f"--url {target.url}: vLLM exposes no engine yet: it has served no request")
    return server_of(target.url, state, settings.min_observations)


def _draw(path: Path, plan: Plan | None) -> None:
    from kvwatch.capacity import PlanError
    from kvwatch.capacity.plot import draw

    if plan is None:
        raise PlanError("--plot needs a model: give --config FILE, too")
    marks = dict(plan.lengths) | ({"max_model_len": plan.length} if plan.length else {})
    memory = plan.budget.available if plan.budget else None
    draw(path, plan.layout, memory, plan.length or max(plan.table_lengths), marks)


@options.argument_type
def _tokens(text: str) -> int:
    from kvwatch.capacity.units import tokens

    return tokens(text)


def _length(text: str) -> int | None:
    return None if text == "auto" else _tokens(text)


@options.argument_type
def _bytes(text: str) -> int:
    found = size(text)
    if found <= 0:
        raise ValueError("must be above 0")
    if found < _MIN_BYTES:
        raise ValueError(f"these are {found} bytes: write for example 80GiB")
    return found


@options.argument_type
def _share(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else 0.0
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1, as 0.9")
    return value


@options.argument_type
def _lengths(text: str) -> dict[str, int]:
    from kvwatch.capacity.request_lengths import parse_lengths

    return parse_lengths(text)
