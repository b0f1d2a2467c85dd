"""The options of `kvwatch plan`, named as vLLM's own where vLLM has them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvwatch.capacity.request_lengths import parse
from kvwatch.capacity.units import tokens
from kvwatch.commands import live, options
from kvwatch.settings.values import size

DEFAULT_BATCHED = 8192
DEFAULT_UTILIZATION = 0.92
_LEAST_BYTES = 1 << 20
"""No memory of a GPU is less; a number without a unit was meant as GiB."""
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
        type=_tokens,
        default=1,
        metavar="N",
        help="GPUs that share each layer (default: 1)",
    )
    flags.add_argument(
        "--pipeline-parallel-size",
        type=_tokens,
        default=1,
        metavar="N",
        help="groups of GPUs that share the layers out (default: 1)",
    )
    flags.add_argument(
        "--decode-context-parallel-size",
        type=_tokens,
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
        help=f"tokens of one step; for windows and overhead (default: {DEFAULT_BATCHED}, vLLM's from 70 GiB on)",
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
        help=f"share that vLLM may take (default: {DEFAULT_UTILIZATION}, as in vLLM)",
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
    server = parser.add_argument_group("a running server")
    server.add_argument("--url", metavar="URL", help="its lengths, cache and limits")
    live.add_target_flags(server, but=("max_num_seqs", "gpus"))
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it, as .svg or .png (needs kvwatch[plot])"
    )
    options.add_json(parser)


def _checked(read: Callable[[str], _T]) -> Callable[[str], _T]:
    def take(text: str) -> _T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None

    return take


@_checked
def _tokens(text: str) -> int:
    return tokens(text)


def _length(text: str) -> int | None:
    return None if text == "auto" else _tokens(text)


@_checked
def _bytes(text: str) -> int:
    found = size(text)
    if found <= 0:
        raise ValueError("must be above 0")
    if found < _LEAST_BYTES:
        raise ValueError(f"these are {found} bytes: write for example 80GiB")
    return found


@_checked
def _share(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else 0.0
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1, as 0.9")
    return value


@_checked
def _lengths(text: str) -> dict[str, int]:
    return parse(text)
