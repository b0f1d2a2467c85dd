"""Asks a real vLLM 0.32 how much KV cache models need. Runs under vLLM's Python, never under kvwatch's.

    ~/vllm-rig/0.32.0/venv/bin/python tests/capacity/oracle.py QUESTIONS.json > ANSWERS.json

For each question vLLM's own code builds the configuration and the model class (whole, with its published sizes, on
the `meta` device: no weights, no memory), asks every layer for its cache, groups the layers and divides the memory.
No kernel runs. A machine without a GPU stands in for one with: the platform chooses GPU attention backends
(Triton, Triton for latent attention too, FlashMLA for sparse, FlashInfer's packing of NVFP4), async scheduling
is on, and the ranks of a tensor or pipeline parallel group are visited one after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
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
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils as sizing
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

MODELS = Path(__file__).parent / "models"
_FLAGS = ("max_model_len", "max_num_batched_tokens", "block_size", "kv_cache_dtype", "enable_prefix_caching")


class _Unused:
    """Stands for the kernels, which nobody calls here."""

    can_return_lse_for_decode = True
    supports_mtp_with_cp_non_trivial_interleave_size = False
    dcp_world_size = 1

    def __init__(self, *args, **given):
        names = ("num_heads", "head_size", "scale", "num_kv_heads")
        self.__dict__.update(dict(zip(names, args, strict=False)) | given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _standing_in(backend, **more):
    return type(backend.__name__, (backend,), {"get_impl_cls": staticmethod(lambda: _Unused), **more})


def _nvfp4(spec):
    """FlashInfer's packing, as in `v1/attention/backends/flashinfer.py`: that module needs FlashInfer itself."""
    from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim

    if spec.state_content_bytes is None and spec.kv_quant_mode.is_nvfp4:
        return replace(
            spec,
            num_head_slots=2 * spec.num_kv_heads,
            state_content_bytes=nvfp4_kv_cache_full_dim(spec.head_size),
        )
    return TritonAttentionBackend.customize_spec(spec)


Plain = _standing_in(TritonAttentionBackend, customize_spec=staticmethod(_nvfp4))
Latent = _standing_in(TritonMLABackend)
Sparse = _standing_in(FlashMLASparseBackend)


def _backend(selected_backend, attn_selector_config, num_heads=None):
    del selected_backend, num_heads
    wanted = attn_selector_config
    kind = "Sparse" if wanted.use_sparse else "Latent" if wanted.use_mla else "Plain"
    return f"{__name__}.{kind}"


def pretend() -> None:
    """Lets the platform choose what a GPU would."""
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))  # nobody looks at an image
    registry._run_in_subprocess = lambda inspect: inspect()
    torch.cpu._is_avx512_bf16_supported = lambda: False
    torch.cpu._is_amx_tile_supported = lambda: True
    cls = type(current_platform)
    cls.get_attn_backend_cls = staticmethod(_backend)
    cls.update_block_size_for_backend = classmethod(Platform.update_block_size_for_backend.__func__)
    rendezvous = tempfile.mktemp()
    with set_current_vllm_config(
        _config("qwen3-30b-a3b", {"max_model_len": 1024})
    ):  # with experts, so with their group
        parallel_state.init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)


def _text_only(model: str):
    """The configuration of the part that caches: the classes around it need image libraries."""
    config = json.loads((MODELS / f"{model}.json").read_text())
    if "text_config" not in config:
        return config
    (outer,) = config["architectures"]
    return config["text_config"] | {
        "architectures": [outer.replace("ForConditionalGeneration", "ForCausalLM")],
        "torch_dtype": config["torch_dtype"],
    }


def _config(model: str, flags):
    folder = tempfile.mkdtemp(prefix="kvwatch-oracle-")
    atexit.register(shutil.rmtree, folder)  # some classes look into it again
    Path(folder, "config.json").write_text(json.dumps(_text_only(model)))
    args = EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, **flags
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


@contextlib.contextmanager
def _rank(config, tensor: int, pipeline: int, stage: int):
    groups = (parallel_state._TP, tensor, 0), (parallel_state._PP, pipeline, stage)
    for group, size, rank in groups:
        group.world_size, group.rank_in_group, group.ranks = size, rank, list(range(size))
        group.rank = rank
    try:
        yield
    finally:
        for group, _, _ in groups:
            group.world_size, group.rank_in_group, group.ranks, group.rank = 1, 0, [0], 0


@contextlib.contextmanager
def _second_runner(config):
    """vLLM's newer model runner, which it uses wherever there is Triton."""
    before = config.use_v2_model_runner
    config.use_v2_model_runner = property(lambda _: True)
    try:
        yield
    finally:
        config.use_v2_model_runner = before


def answer(question):
    tensor, pipeline = question.get("tensor_parallel_size", 1), question.get("pipeline_parallel_size", 1)
    context = question.get("decode_context_parallel_size", 1)
    config = _config(question["model"], {name: question[name] for name in _FLAGS if name in question})
    config.parallel_config.tensor_parallel_size = tensor
    config.parallel_config.pipeline_parallel_size = pipeline
    config.parallel_config.decode_context_parallel_size = context
    config.scheduler_config.async_scheduling = True
    specs = []
    with set_current_vllm_config(config), _second_runner(type(config)):
        for stage in range(pipeline):
            config.compilation_config.static_forward_context.clear()
            with _rank(config, tensor, pipeline, stage), torch.device(question.get("device", "meta")):
                initialize_model(vllm_config=config)
                current_platform.update_block_size_for_backend(config)
                specs.append(get_kv_cache_spec(config))
        layouts = [
            layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))
        ]
        resolve_kv_cache_layout(config, [layouts], [spec for rank in specs for spec in rank.values()])
        memory = question["kv_cache_memory_bytes"]
        groups = sizing.get_kv_cache_groups(config, {k: v for rank in specs for k, v in rank.items()})
        on_ranks = [sizing._project_kv_cache_groups_to_worker(groups, rank) for rank in specs]
        needed = max(sizing._max_memory_usage_bytes_from_groups(config, rank) for rank in on_ranks)
        configs = sizing.get_kv_cache_configs(config, specs, [memory] * pipeline)
        tokens, concurrency = sizing.get_kv_cache_capacity(
            config, sizing.generate_scheduler_kv_cache_config(configs)
        )
    return {
        "num_blocks": configs[0].num_blocks,
        "bytes_per_block": max(sizing._pool_bytes_per_block(config, rank) for rank in on_ranks),
        "groups": len(groups),
        "block_size": config.cache_config.block_size,
        "kv_cache_tokens": tokens,
        "max_concurrency": concurrency,
        "needed_bytes": needed,
        "in_flight_tokens": config.max_in_flight_tokens,
        "layout": config.cache_config.kv_cache_layout,
    }


def main() -> None:
    questions = json.loads(Path(sys.argv[1]).read_text())
    only = sys.argv[2:]
    pretend()
    for name, question in questions.items():
        if only and name not in only:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            found = answer(question)
        except Exception as error:  # noqa: BLE001 - one that vLLM refuses says so, the others are still asked
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            if only:
                raise
        print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    sys.modules["oracle"] = sys.modules["__main__"]
    main()
