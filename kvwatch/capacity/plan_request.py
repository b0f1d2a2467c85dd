"""The one call of this package: `plan(request)`, from a model, vLLM's options and memory to what fits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvwatch.capacity.caches import CacheKind, Model
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.gpu_memory import Budget, budget_of_gpu, weights_beside, weights_in
from kvwatch.capacity.kv_model import from_config, from_numbers
from kvwatch.capacity.kv_plan import Plan
from kvwatch.capacity.serving import Server
from kvwatch.capacity.sizing import Flags, layout_of
from kvwatch.capacity.units import GIB, gib, thousands
from kvwatch.settings.values import size

DEFAULT_UTILIZATION = 0.92
"""vLLM's own since 0.32."""
LARGE_GPU = 70 * GIB
"""vLLM's defaults differ from this size on, except for an A100 (`EngineArgs.get_batch_defaults`)."""
_BATCHED_LARGE, _BATCHED_SMALL = 8192, 2048
_MAX_CONFIG_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model and how it is served. Fields are named as vLLM's options; None is vLLM's default.

    The model is `config` (a config.json or its folder), or `layers`, `kv_heads` and `head_dim`. Memory is
    `kv_cache_memory`, or `gpu_memory` less `weights` (a size, or a path) and `overhead`, all in bytes of one GPU
    except `weights`, which are those of the whole model. `lengths` are tokens of whole requests by percentile.
    `server` is a running server, whose options fill in for what is not given.
    """

    config: Path | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_memory: int | None = None
    gpu_memory: int | None = None
    gpu_memory_utilization: float | None = None
    weights: str | None = None
    overhead: int | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)
    server: Server | None = None

    @property
    def names_model(self) -> bool:
        """Whether there is anything to plan for, beside a running server."""
        return self.config is not None or any((self.layers, self.kv_heads, self.head_dim))


def plan(request: PlanRequest) -> Plan:
    """What the KV cache of a model holds.

    Raises:
        PlanError: the model can't be planned, or options are missing, wrong or contradict each other.
    """
    model, assumed = _model(request), list[str]()
    flags = _flags(request, model, assumed)
    layout = layout_of(model, flags)
    if flags.max_model_len is None and model.max_len is None:
        assumed.append(
            "the model's configuration has no maximum length: give --max-model-len for the size of a full request"
        )
    server = request.server
    reported = server.num_blocks * layout.bytes_per_block if server and server.num_blocks else None
    budget = _budget(request, model, flags, reported)

    def memory_with(changed: Flags) -> int | None:
        own = _budget(request, model, changed, None)
        return own.available if own else budget.available if budget else None

    lengths = request.lengths or (server.served.total if server else {})
    notes = (*assumed, *(budget.notes if budget else ()))
    return Plan(
        layout, budget, memory_with, lengths, request.max_num_seqs, _served_name(request.config), notes
    )


def _model(request: PlanRequest) -> Model:
    numbers = {"--layers": request.layers, "--kv-heads": request.kv_heads, "--head-dim": request.head_dim}
    given = [name for name, value in numbers.items() if value]
    if request.config is not None:
        if given:
            raise PlanError(f"{given[0]} is in the file of --config: give one or the other")
        return from_config(_read_config(_config_file(request.config)))
    if not (request.layers and request.kv_heads and request.head_dim):
        missing = " and ".join(name for name in numbers if name not in given)
        raise PlanError(
            f"{missing} must be given with {given[0]}" if given else "no model: give --config FILE"
        )
    return from_numbers(request.layers, request.kv_heads, request.head_dim)


def _config_file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _read_config(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise PlanError(f"--config {path}: too large for a model's configuration")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(
            f"--config {path}: {error.strerror or error}; give the config.json of a model, or its folder, on this"
            " machine"
        ) from None
    except (ValueError, RecursionError):
        raise PlanError(
            f"--config {path}: not JSON; give the config.json of a model from Hugging Face"
        ) from None


def _served_name(config: Path | None) -> str:
    """The model in a `vllm serve` line: its folder, where that is known."""
    folder = config.parent if config is not None and config.name == "config.json" else config
    return shlex.quote(str(folder)) if folder is not None and folder.name and folder.is_dir() else "MODEL"


def _flags(request: PlanRequest, model: Model, assumed: list[str]) -> Flags:
    server, batched = request.server, request.max_num_batched_tokens
    if batched is None:
        large = request.gpu_memory is None or request.gpu_memory >= LARGE_GPU
        batched = _BATCHED_LARGE if large else _BATCHED_SMALL
        card = f"a GPU of {gib(request.gpu_memory)}" if request.gpu_memory else "a GPU of 70 GiB or more"
        other = "; it is 2048 on a smaller one and on an A100" if large else ""
        assumed.append(f"--max-num-batched-tokens {batched} is assumed, vLLM's default on {card}{other}")
    block = request.block_size
    if block is None and server is not None and not model.has(CacheKind.STATE):
        block = server.block_size
    dtype = request.kv_cache_dtype
    if dtype == "auto" and server is not None and server.cache_dtype:
        dtype = server.cache_dtype
    return Flags(
        dtype,
        request.tensor_parallel_size,
        request.pipeline_parallel_size,
        request.decode_context_parallel_size,
        block,
        request.max_model_len or (server.max_model_len if server else None),
        batched,
        request.enable_prefix_caching,
    )


def _budget(request: PlanRequest, model: Model, flags: Flags, reported: int | None) -> Budget | None:
    """The memory for the cache under `flags`; `reported` is that of the running server."""
    if request.kv_cache_memory is not None:
        if request.gpu_memory is not None:
            raise PlanError("--kv-cache-memory and --gpu-memory: give one of them")
        return Budget(request.kv_cache_memory)
    if request.gpu_memory is None:
        for name in ("weights", "overhead", "gpu_memory_utilization"):
            if getattr(request, name) is not None:
                raise PlanError(f"--{name.replace('_', '-')} counts only with --gpu-memory: give that, too")
        return None if reported is None else Budget(reported)
    weights, notes = _weights(request, model)
    return budget_of_gpu(
        request.gpu_memory,
        request.gpu_memory_utilization or DEFAULT_UTILIZATION,
        -(-weights // (flags.tensor * flags.pipeline)),
        request.overhead,
        model=model,
        batched=flags.batched,
        notes=notes,
    )


def _weights(request: PlanRequest, model: Model) -> tuple[int, tuple[str, ...]]:
    """Bytes of the whole model's weights, and a note if they are estimated."""
    if request.weights is not None:
        path = Path(request.weights)
        if path.exists():
            return weights_in(path), ()
        try:
            return size(request.weights), ()
        except ValueError:
            raise PlanError(
                f"--weights {request.weights}: neither a size, as 16GiB, nor a file or folder that exists"
            ) from None
    found = weights_beside(_config_file(request.config)) if request.config is not None else None
    if found is not None:
        return found, ()
    if model.weight_bytes is None:
        raise PlanError(
            "--gpu-memory needs the size of the weights: give --weights 16GiB, or the model's folder"
        )
    note = (
        f"the weights are an estimate from the configuration: {thousands(model.parameters or 0)} parameters,"
        f" {gib(model.weight_bytes)}. Give --weights, or the model's folder, for the real size"
    )
    return model.weight_bytes, (note,)
