"""`kvwatch plan`: how many tokens and requests fit, before a server runs or beside one that does."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwatch.commands.output import complain, print_json, say
from kvwatch.settings.values import size

if TYPE_CHECKING:
    from kvwatch.capacity.caches import Model
    from kvwatch.capacity.kv_plan import Plan
    from kvwatch.capacity.memory import Budget
    from kvwatch.capacity.serving import Server
    from kvwatch.capacity.sizing import Flags

HELP = "reckon how many tokens and requests fit in the KV cache, and what would fit more"
EPILOG = """\
examples:
  kvwatch plan --config Llama-3.1-8B/config.json --gpu-memory 80GiB --lengths p50=900,p95=6k,p99=12k
                                              what fits on an 80 GiB GPU, weights from the files beside config.json
  kvwatch plan --layers 32 --kv-heads 8 --head-dim 128 --max-model-len 8192 --max-num-seqs 8
                                              by the numbers: 131,072 bytes a token, 1 GiB a request, 8 GiB for eight
  kvwatch plan --url http://localhost:8000 --config config.json
                                              a running server: the lengths it serves against the cache it has
  kvwatch plan --config config.json --kv-cache-memory 30GiB --plot kv.svg

The flags are named as vLLM's own. The sizes follow the code of vLLM 0.32 on NVIDIA GPUs; its log has the last word.

exit codes:
  0  a plan, in which one request of full length fits, or no memory was given
  1  it does not fit: vLLM would not start
  2  a model that can't be reckoned, a value that can't be used, or a server that can't be read
"""
_MOST_BYTES = 256 << 20
"""Of a config.json."""


def add(parser: argparse.ArgumentParser) -> None:
    from kvwatch.commands import plan_options

    plan_options.add(parser)


def main(args: argparse.Namespace) -> int:
    from kvwatch.capacity.errors import PlanError

    try:
        return _run(args)
    except PlanError as error:
        complain(str(error))
        return 2


def _run(args: argparse.Namespace) -> int:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.serving import advise
    from kvwatch.commands import plan_live, plan_report

    _check_plot(args.plot)
    model = _model(args)
    if model is None and args.url is None:
        raise PlanError(
            "say what to plan for: --config FILE, --layers with --kv-heads and --head-dim, or --url URL"
        )
    if model is None:
        _only_with_model(args)
    live = plan_live.ask(args) if args.url is not None else None
    plan = _plan(args, model, live) if model is not None else None
    advice = None if live is None else advise(live, plan, args.max_num_seqs)
    if args.plot is not None:
        _draw(args.plot, plan)
    if args.json:
        print_json((plan.as_data() if plan else {}) | ({"live": advice.as_data()} if advice else {}))
    else:
        if plan is not None:
            plan_report.show(plan)
        if advice is not None:
            plan_report.show_live(plan_live.lines(advice), first=plan is None)
        if args.plot is not None:
            say(f"\nDrawn: {args.plot}")
    return 1 if plan is not None and plan.sizing is not None and not plan.sizing.fits else 0


def _model(args: argparse.Namespace) -> Model | None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.kv_model import from_config, from_numbers

    numbers = {"--layers": args.layers, "--kv-heads": args.kv_heads, "--head-dim": args.head_dim}
    given = [name for name, value in numbers.items() if value]
    if args.model is not None:
        if given:
            raise PlanError(f"{given[0]} stands in the file of --config: give one or the other")
        return from_config(_read(_config_file(args.model)))
    if not given:
        return None
    if len(given) < len(numbers):
        raise PlanError(
            f"{' and '.join(name for name in numbers if name not in given)} must be given beside {given[0]}"
        )
    return from_numbers(args.layers, args.kv_heads, args.head_dim)


def _config_file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _read(path: Path) -> Any:
    from kvwatch.capacity.errors import PlanError

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise PlanError(f"--config {path}: too large to be a model's configuration")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(
            f"--config {path}: {error.strerror or error}; give the config.json of a model, or its folder, on this"
            " machine"
        ) from None
    except (ValueError, RecursionError):
        raise PlanError(
            f"--config {path}: not JSON; give the config.json of a model as Hugging Face has it"
        ) from None


def _only_with_model(args: argparse.Namespace) -> None:
    """Refuses options that would not count: of a server alone its own settings are told."""
    from kvwatch.capacity.errors import PlanError

    unset: dict[str, object] = {
        "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1, "max_model_len": None, "block_size": None, "max_num_batched_tokens": None,
        "kv_cache_memory": None, "gpu_memory": None, "gpu_memory_utilization": None, "weights": None,
        "overhead": None, "lengths": None,
    }  # fmt: skip
    given = next((name for name, value in unset.items() if getattr(args, name) != value), None)
    if given is not None:
        raise PlanError(f"--{given.replace('_', '-')} counts only with a model: give --config, too")


def _plan(args: argparse.Namespace, model: Model, live: Server | None) -> Plan:
    from kvwatch.capacity.caches import CacheKind
    from kvwatch.capacity.kv_plan import Plan
    from kvwatch.capacity.sizing import Flags, laid_out
    from kvwatch.commands.plan_options import DEFAULT_BATCHED

    assumed: list[str] = []
    batched = args.max_num_batched_tokens
    if batched is None:
        batched = DEFAULT_BATCHED
        assumed.append(
            f"--max-num-batched-tokens {batched} is assumed: vLLM's default for a GPU of 70 GiB and more;"
            " it is 2048 for a smaller one or an A100"
        )
    length, block, dtype = args.max_model_len, args.block_size, args.kv_cache_dtype
    if live is not None:
        length = length or live.max_model_len
        dtype = live.cache_dtype if dtype == "auto" and live.cache_dtype else dtype
        block = block or (live.block_size if not model.has(CacheKind.STATE) else None)
    flags = Flags(
        dtype,
        args.tensor_parallel_size,
        args.pipeline_parallel_size,
        args.decode_context_parallel_size,
        block,
        length,
        batched,
        args.enable_prefix_caching,
    )
    layout = laid_out(model, flags)
    if length is None and model.max_len is None:
        assumed.append(
            "no --max-model-len, and the configuration names none: what a full request needs is not told"
        )
    budget = _budget(
        args, model, flags, live.num_blocks * layout.bytes_per_block if live and live.num_blocks else None
    )

    def budget_of(other: Flags) -> int | None:
        changed = _budget(args, model, other, None)
        return changed.available if changed else budget.available if budget else None

    if budget is not None:
        assumed += budget.how
    served = args.lengths or (live.served.total if live else {})
    return Plan(layout, budget, budget_of, served, args.max_num_seqs, _name(args.model), tuple(assumed))


def _name(path: Path | None) -> str:
    """What stands for the model in a `vllm serve` line: its folder, where that is known."""
    if path is not None and not path.is_dir():
        path = path.parent if path.name == "config.json" else None
    return "MODEL" if path is None or not path.name else shlex.quote(str(path))


def _budget(args: argparse.Namespace, model: Model, flags: Flags, reported: int | None) -> Budget | None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.memory import Budget, from_gpu
    from kvwatch.commands.plan_options import DEFAULT_UTILIZATION

    if args.kv_cache_memory is not None:
        if args.gpu_memory is not None:
            raise PlanError("--kv-cache-memory and --gpu-memory: give one of them")
        return Budget(args.kv_cache_memory)
    if args.gpu_memory is None:
        _only_with_gpu_memory(args)
        return None if reported is None else Budget(reported)
    whole = _weights(args)
    ranks = flags.tensor * flags.pipeline
    return from_gpu(
        args.gpu_memory,
        args.gpu_memory_utilization or DEFAULT_UTILIZATION,
        -(-whole // ranks),
        args.overhead,
        model=model,
        batched=flags.batched,
    )


def _only_with_gpu_memory(args: argparse.Namespace) -> None:
    from kvwatch.capacity.errors import PlanError

    for name in ("weights", "overhead", "gpu_memory_utilization"):
        if getattr(args, name) is not None:
            raise PlanError(f"--{name.replace('_', '-')} counts only with --gpu-memory: give that, too")


def _weights(args: argparse.Namespace) -> int:
    from kvwatch.capacity import weights
    from kvwatch.capacity.errors import PlanError

    if args.weights is not None:
        path = Path(args.weights)
        if path.exists():
            return weights.of(path)
        try:
            return size(args.weights)
        except ValueError:
            raise PlanError(
                f"--weights {args.weights}: neither a size, as 16GiB, nor a file or folder that is there"
            ) from None
    found = weights.beside(_config_file(args.model)) if args.model is not None else None
    if found is None:
        raise PlanError(
            "--gpu-memory needs the size of the weights: give --weights 16GiB, or the model's folder"
        )
    return found


def _check_plot(path: Path | None) -> None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.plot import SUFFIXES

    if path is not None and path.suffix not in SUFFIXES:
        raise PlanError(f"--plot {path}: must end in {' or '.join(SUFFIXES)}")


def _draw(path: Path, plan: Plan | None) -> None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.plot import draw

    if plan is None:
        raise PlanError("--plot needs the model as well: --config FILE")
    marks = dict(plan.served)
    if plan.length:
        marks["max_model_len"] = plan.length
    draw(
        path,
        plan.layout,
        plan.budget.available if plan.budget else None,
        plan.length or max(plan.rungs),
        marks,
    )
