"""Questions to vLLM and its answers, and what kvwatch plans for the same, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvwatch.capacity.kv_model import from_config
from kvwatch.capacity.sizing import Flags, Sizing, layout_of, sizing_of

HERE = Path(__file__).parent
QUESTIONS: Mapping[str, Mapping[str, Any]] = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
ANSWERS: Mapping[str, Mapping[str, Any]] = json.loads((HERE / "answers.json").read_text(encoding="utf-8"))


def config(model: str) -> dict[str, Any]:
    """A published configuration, without what plays no part."""
    found: dict[str, Any] = json.loads((HERE / "models" / f"{model}.json").read_text(encoding="utf-8"))
    return found


def planned(question: Mapping[str, Any]) -> Sizing:
    flags = Flags(
        kv_cache_dtype=question.get("kv_cache_dtype", "auto"),
        tensor=question.get("tensor_parallel_size", 1),
        pipeline=question.get("pipeline_parallel_size", 1),
        context=question.get("decode_context_parallel_size", 1),
        max_model_len=question["max_model_len"],
        batched=question["max_num_batched_tokens"],
        prefix_caching=question.get("enable_prefix_caching", True),
    )
    return sizing_of(
        layout_of(from_config(config(question["model"])), flags), question["kv_cache_memory_bytes"]
    )


def as_vllm_says(sizing: Sizing) -> dict[str, Any]:
    """A plan in the words of the answers."""
    assert sizing.length is not None
    return {
        "num_blocks": sizing.num_blocks,
        "bytes_per_block": sizing.layout.bytes_per_block,
        "groups": len(sizing.layout.groups),
        "kv_cache_tokens": sizing.kv_cache_tokens,
        "max_concurrency": sizing.max_concurrency,
        "needed_bytes": sizing.layout.needed_bytes(sizing.length),
        "in_flight_tokens": sizing.layout.demand.in_flight,
    }


def table(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Tokens that kvwatch plans and vLLM reports."""
    lines = [f"{'':52}{'planned':>12}{'vLLM 0.32':>12}{'':>9}"]
    for name, question in QUESTIONS.items():
        tokens, said = planned(question).kv_cache_tokens, answers[name]["kv_cache_tokens"]
        lines.append(f"{name:52}{tokens:>12,}{said:>12,}{tokens / said - 1:>+9.2%}")
    return "\n".join(lines)
