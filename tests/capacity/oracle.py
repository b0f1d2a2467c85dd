"""Asks a real vLLM 0.32 how much KV cache models need. Runs under vLLM's Python, never under kvwatch's::

    VLLM_PYTHON tests/capacity/oracle.py > tests/capacity/answers.json

For each question in `questions.json` vLLM's own code builds the configuration and the model class (whole, with its
published sizes, on the `meta` device: no weights, no memory), asks every layer for its cache, groups the layers and
divides the memory. No kernel runs. A machine without a GPU stands in for one with: the platform chooses GPU attention
backends (Triton, FlashMLA for sparse attention, FlashInfer's packing of NVFP4), async scheduling is on, and the ranks
of a pipeline are visited one after the other. `questions.json` names a model of `models/`, vLLM's flags, and the
memory of each GPU; `device` is where the model is built, if not on `meta`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.triton_utils import triton
from vllm.usage.usage_lib import UsageContext
from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim
from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils as sizing
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

HERE = Path(__file__).parent
_FLAGS = ("max_model_len", "max_num_batched_tokens", "block_size", "kv_cache_dtype", "enable_prefix_caching")


class _Kernels:
    """Stands for an attention kernel, which nobody calls here."""

    can_return_lse_for_decode = True
    dcp_world_size = 1

    def __init__(self, *args: Any, **given: Any) -> None:
        names = ("num_heads", "head_size", "scale", "num_kv_heads")
        self.__dict__.update(dict(zip(names, args, strict=False)) | given)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _standing_in(backend: Any, **more: Any) -> Any:
    return type(backend.__name__, (backend,), {"get_impl_cls": staticmethod(lambda: _Kernels), **more})


def _packed(spec: Any) -> Any:
    """The packing of `v1/attention/backends/flashinfer.py` for NVFP4 (that module needs FlashInfer itself), and
    Triton's for the rest."""
    if spec.state_content_bytes is None and spec.kv_quant_mode.is_nvfp4:
        size = nvfp4_kv_cache_full_dim(spec.head_size)
        return replace(spec, num_head_slots=2 * spec.num_kv_heads, state_content_bytes=size)
    return TritonAttentionBackend.customize_spec(spec)


Plain = _standing_in(TritonAttentionBackend, customize_spec=staticmethod(_packed))
Latent = _standing_in(TritonMLABackend)
Sparse = _standing_in(FlashMLASparseBackend)


def _backend(selected_backend: Any, attn_selector_config: Any, num_heads: Any = None) -> str:
    del selected_backend, num_heads
    sparse, latent = attn_selector_config.use_sparse, attn_selector_config.use_mla
    return f"oracle.{'Sparse' if sparse else 'Latent' if latent else 'Plain'}"


def pretend() -> None:
    """Lets the platform choose what a GPU would, in this process alone."""
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))  # nobody looks at an image
    triton.set_allocator = lambda _: None
    sys.modules["oracle"] = sys.modules[__name__]
    registry._run_in_subprocess = lambda inspect: inspect()
    torch.cpu._is_avx512_bf16_supported = lambda: False
    torch.cpu._is_amx_tile_supported = lambda: True
    platform = type(current_platform)
    platform.get_attn_backend_cls = staticmethod(_backend)
    platform.update_block_size_for_backend = classmethod(Platform.update_block_size_for_backend.__func__)
    with set_current_vllm_config(_config("qwen3-30b-a3b", {"max_model_len": 1024})):  # has a group of experts
        parallel_state.init_distributed_environment(1, 0, f"file://{_folder()}/rendezvous", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


def _folder() -> str:
    """A folder that is gone at the end: some classes look into a model's once more while they are built."""
    folder = tempfile.mkdtemp(prefix="kvwatch-oracle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _text_only(model: str) -> dict[str, Any]:
    """The configuration of the part that caches: the classes around it need image libraries."""
    config: dict[str, Any] = json.loads((HERE / "models" / f"{model}.json").read_text())
    if "text_config" not in config:
        return config
    inner = [name.replace("ForConditionalGeneration", "ForCausalLM") for name in config["architectures"]]
    text: dict[str, Any] = config["text_config"]
    return text | {"architectures": inner, "torch_dtype": config["torch_dtype"]}


def _config(model: str, flags: dict[str, Any]) -> Any:
    folder = _folder()
    Path(folder, "config.json").write_text(json.dumps(_text_only(model)))
    args = EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, **flags
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


@contextlib.contextmanager
def _rank(tensor: int, pipeline: int, stage: int) -> Iterator[None]:
    groups = (parallel_state._TP, tensor, 0), (parallel_state._PP, pipeline, stage)
    for group, size, rank in groups:
        group.world_size, group.rank_in_group, group.ranks, group.rank = size, rank, list(range(size)), rank
    try:
        yield
    finally:
        for group, _, _ in groups:
            group.world_size, group.rank_in_group, group.ranks, group.rank = 1, 0, [0], 0


@contextlib.contextmanager
def _second_runner(config: Any) -> Iterator[None]:
    """vLLM's newer model runner, which it uses wherever there is Triton."""
    before = config.use_v2_model_runner
    config.use_v2_model_runner = property(lambda _: True)
    try:
        yield
    finally:
        config.use_v2_model_runner = before


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of a question."""
    tensor, pipeline = question.get("tensor_parallel_size", 1), question.get("pipeline_parallel_size", 1)
    config = _config(question["model"], {name: question[name] for name in _FLAGS if name in question})
    config.parallel_config.tensor_parallel_size = tensor
    config.parallel_config.pipeline_parallel_size = pipeline
    config.parallel_config.decode_context_parallel_size = question.get("decode_context_parallel_size", 1)
    config.scheduler_config.async_scheduling = True
    specs = []
    with set_current_vllm_config(config), _second_runner(type(config)):
        for stage in range(pipeline):
            config.compilation_config.static_forward_context.clear()
            with _rank(tensor, pipeline, stage), torch.device(question.get("device", "meta")):
                initialize_model(vllm_config=config)
                current_platform.update_block_size_for_backend(config)
                specs.append(get_kv_cache_spec(config))
        layouts = [one.name for one in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
        resolve_kv_cache_layout(config, [layouts], [spec for rank in specs for spec in rank.values()])
        return _sized(config, specs, question["kv_cache_memory_bytes"])


def _sized(config: Any, specs: list[dict[str, Any]], memory: int) -> dict[str, Any]:
    groups = sizing.get_kv_cache_groups(config, {name: spec for rank in specs for name, spec in rank.items()})
    on_ranks = [sizing._project_kv_cache_groups_to_worker(groups, rank) for rank in specs]
    configs = sizing.get_kv_cache_configs(config, specs, [memory] * len(specs))
    tokens, at_once = sizing.get_kv_cache_capacity(config, sizing.generate_scheduler_kv_cache_config(configs))
    return {
        "num_blocks": configs[0].num_blocks,
        "bytes_per_block": max(sizing._pool_bytes_per_block(config, rank) for rank in on_ranks),
        "groups": len(groups),
        "kv_cache_tokens": tokens,
        "max_concurrency": at_once,
        "needed_bytes": max(sizing._max_memory_usage_bytes_from_groups(config, rank) for rank in on_ranks),
        "in_flight_tokens": config.max_in_flight_tokens,
    }


def main() -> None:
    pretend()
    answers = {}
    for name, question in json.loads((HERE / "questions.json").read_text()).items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        answers[name] = answer(question)
    print(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
