"""`kvwatch plan`: how many tokens and requests fit, before a server runs or beside one that does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvwatch.commands import options
from kvwatch.commands.output import complain, print_json, say
from kvwatch.settings.values import size

if TYPE_CHECKING:
    from kvwatch.capacity.answer import Plan
    from kvwatch.capacity.caches import Model
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
_DEFAULT_BATCHED = 8192
_DEFAULT_UTILIZATION = 0.92
_MOST_BYTES = 256 << 20
"""Of a config.json."""
_T = TypeVar("_T")


def add(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument(
        "--config", dest="model", type=Path, metavar="FILE", help="the model's config.json, or its folder"
    )
    model.add_argument(
        "--layers", type=_tokens, metavar="N", help="instead of a file: layers that keep every token"
    )
    model.add_argument("--kv-heads", type=_tokens, metavar="N", help="key-value heads of a layer")
    model.add_argument("--head-dim", type=_tokens, metavar="N", help="size of a head")
    flags = parser.add_argument_group("how vLLM is started")
    flags.add_argument(
        "--max-model-len",
        type=_length,
        metavar="TOKENS",
        help="longest request, as 32768 or 32k (default: the model's)",
    )
    flags.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="TYPE",
        help="auto, fp8, fp8_ds_mla, int8_per_token_head, nvfp4, … (default: auto)",
    )
    flags.add_argument(
        "--tensor-parallel-size",
        type=_ranks,
        default=1,
        metavar="N",
        help="GPUs that share each layer (default: 1)",
    )
    flags.add_argument(
        "--pipeline-parallel-size",
        type=_ranks,
        default=1,
        metavar="N",
        help="groups of GPUs that share the layers out (default: 1)",
    )
    flags.add_argument(
        "--decode-context-parallel-size",
        type=_ranks,
        default=1,
        metavar="N",
        help="GPUs that share the tokens (default: 1)",
    )
    flags.add_argument(
        "--block-size",
        type=_tokens,
        metavar="TOKENS",
        help="tokens in a block (default: vLLM's for the model)",
    )
    flags.add_argument(
        "--max-num-batched-tokens",
        type=_tokens,
        metavar="TOKENS",
        help=f"tokens of one step; for windows and overhead (default: {_DEFAULT_BATCHED}, vLLM's from 70 GiB on)",
    )
    flags.add_argument("--max-num-seqs", type=options.requests, metavar="REQUESTS", help="requests at once")
    flags.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="counts for models with a state (default: on)",
    )
    memory = parser.add_argument_group("memory of one GPU")
    memory.add_argument(
        "--kv-cache-memory",
        type=_bytes,
        metavar="SIZE",
        help="for the cache, as 30GiB: vLLM logs it as available KV cache memory",
    )
    memory.add_argument(
        "--gpu-memory",
        type=_bytes,
        metavar="SIZE",
        help="or the whole of the GPU, as 80GiB, less what follows",
    )
    memory.add_argument(
        "--gpu-memory-utilization",
        type=_share,
        metavar="SHARE",
        help=f"share that vLLM may take (default: {_DEFAULT_UTILIZATION}, as in vLLM)",
    )
    memory.add_argument(
        "--weights",
        metavar="SIZE|PATH",
        help="of the whole model, as 16GiB, or the folder or index that tells (default: the folder of --config)",
    )
    memory.add_argument(
        "--overhead",
        type=_bytes,
        metavar="SIZE",
        help="activations, CUDA graphs and the like (default: an estimate)",
    )
    load = parser.add_argument_group("requests")
    load.add_argument(
        "--lengths",
        type=_lengths,
        metavar="P=TOKENS",
        default=None,
        help="whole lengths, prompt and output, as p50=900,p95=6k,p99=12k",
    )
    load.add_argument("--url", metavar="URL", help="a running server: its lengths, cache and limits")
    for name in ("token-file", "ca-file"):
        load.add_argument(f"--{name}", metavar="FILE", help="for --url, as in `kvwatch check`")
    load.add_argument(
        "--insecure-tls", action="store_true", default=None, help="for --url, as in `kvwatch check`"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it, as .svg or .png (needs kvwatch[plot])"
    )
    options.add_json(parser)


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
    from kvwatch.commands import plan_live, plan_text

    _check_plot(args.plot)
    model = _model(args)
    if model is None and args.url is None:
        raise PlanError(
            "say what to plan for: --config FILE, --layers with --kv-heads and --head-dim, or --url URL"
        )
    live = plan_live.ask(args) if args.url is not None else None
    plan = _plan(args, model, live) if model is not None else None
    advice = None if live is None else advise(live, plan, args.max_num_seqs)
    if args.plot is not None:
        _draw(args.plot, plan)
    if args.json:
        print_json((plan.as_data() if plan else {}) | ({"live": advice.as_data()} if advice else {}))
    else:
        if plan is not None:
            plan_text.show(plan)
        if advice is not None:
            plan_text.show_live(plan_live.lines(advice), first=plan is None)
        if args.plot is not None:
            say(f"\nDrawn: {args.plot}")
    return 1 if plan is not None and plan.sizing is not None and not plan.sizing.fits else 0


def _model(args: argparse.Namespace) -> Model | None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.model import from_config, from_numbers

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
            f"{' and '.join(name for name in numbers if name not in given)} is missing beside {given[0]}"
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
        raise PlanError(f"--config {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise PlanError(
            f"--config {path}: not JSON; give the config.json of a model as Hugging Face has it"
        ) from None


def _plan(args: argparse.Namespace, model: Model, live: Server | None) -> Plan:
    from kvwatch.capacity.answer import Plan
    from kvwatch.capacity.caches import Kind
    from kvwatch.capacity.sizing import Flags, laid_out

    assumed: list[str] = []
    batched = args.max_num_batched_tokens
    if batched is None:
        batched = _DEFAULT_BATCHED
        assumed.append(
            f"--max-num-batched-tokens {batched} is assumed: vLLM's default for a GPU of 70 GiB and more;"
            " it is 2048 for a smaller one or an A100"
        )
    length, block, dtype = args.max_model_len, args.block_size, args.kv_cache_dtype
    if live is not None:
        length = length or live.max_model_len
        dtype = live.cache_dtype if dtype == "auto" and live.cache_dtype else dtype
        block = block or (live.block_size if not model.has(Kind.STATE) else None)
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


def _budget(args: argparse.Namespace, model: Model, flags: Flags, reported: int | None) -> Budget | None:
    from kvwatch.capacity.errors import PlanError
    from kvwatch.capacity.memory import Budget, from_gpu

    if args.kv_cache_memory is not None:
        if args.gpu_memory is not None:
            raise PlanError("--kv-cache-memory and --gpu-memory: give one of them")
        return Budget(args.kv_cache_memory)
    if args.gpu_memory is None:
        return None if reported is None else Budget(reported)
    whole = _weights(args)
    ranks = flags.tensor * flags.pipeline
    return from_gpu(
        args.gpu_memory,
        args.gpu_memory_utilization or _DEFAULT_UTILIZATION,
        -(-whole // ranks),
        args.overhead,
        model=model,
        batched=flags.batched,
    )


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


def _checked(read: Callable[[str], _T]) -> Callable[[str], _T]:
    def take(text: str) -> _T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return take


@_checked
def _tokens(text: str) -> int:
    from kvwatch.capacity.units import tokens

    return tokens(text)


def _length(text: str) -> int | None:
    return None if text == "auto" else _tokens(text)


@_checked
def _ranks(text: str) -> int:
    from kvwatch.capacity.units import tokens

    return tokens(text)


@_checked
def _bytes(text: str) -> int:
    found = size(text)
    if found <= 0:
        raise ValueError("must be above 0")
    return found


@_checked
def _share(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else 0.0
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1, as 0.9")
    return value


@_checked
def _lengths(text: str) -> dict[str, int]:
    from kvwatch.capacity.lengths import parse

    return parse(text)
