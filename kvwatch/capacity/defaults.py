"""What a model's configuration class says where its file is silent.

Of the text part within a larger model a file leaves out whatever equals its class's default, and a size of a head
that is worked out instead may be wrong: of Gemma it is 256 whatever hidden size and heads are. The rows are those of
transformers 5, which vLLM 0.32 loads configurations with, by `model_type`; meanings are those of `config.ALIASES`, or
a key itself. A number that the class works out from the others is in no row.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Meanings that hold for every file; the others only where the text part stands within another configuration, which
#: is how files come to leave them out. A whole configuration without its layers is rather a piece of one.
ALWAYS = frozenset({"kv_heads", "head_dim"})


_MEANINGS = ("layers", "heads", "kv_heads", "hidden", "head_dim", "max_len")


def _row(*numbers: int | None, **more: int) -> Mapping[str, int]:
    """Numbers in the order of `_MEANINGS`."""
    named = zip(_MEANINGS, numbers, strict=True)
    return {key: value for key, value in named if value is not None} | more


_GATED = {
    "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
BY_MODEL_TYPE: Mapping[str, Mapping[str, int]] = {
    "aria_text": _row(32, 32, None, 4096, None, 2048),
    "cohere": _row(40, 64, None, 8192, None, 8192),
    "cohere2": _row(40, 64, None, 8192, None, 8192),
    "exaone4": _row(32, 32, 32, 4096, None, 2048),
    "gemma": _row(28, 16, 16, 3072, 256, 8192),
    "gemma2": _row(26, 8, 4, 2304, 256, 8192),
    "gemma3_text": _row(26, 8, 4, 2304, 256, 131_072),
    "gemma3n_text": _row(35, 8, 2, 2048, 256, 32_768, num_kv_shared_layers=15),
    "gemma4_text": _row(30, 8, 4, 2304, 256, 131_072),
    "glm": _row(40, 32, 2, 4096, 128, 131_072),
    "glm4": _row(40, 32, 2, 4096, 128, 131_072),
    "glm4_moe": _row(46, 96, 8, 4096, None, 131_072),
    "glm4v_text": _row(40, 32, 2, 4096, None, 32_768),
    "glm4v_moe_text": _row(46, 96, 8, 4096, None, 65_536),
    "gpt_oss": _row(36, 64, 8, 2880, 64, 131_072),
    "granite": _row(32, 32, None, 4096, None, 2048),
    "lfm2": _row(32, 32, 8, 2560, None, 128_000),
    "llama": _row(32, 32, None, 4096, None, 2048),
    "llama4_text": _row(48, 40, 8, 5120, 128, 131_072),
    "minimax_m2": _row(62, 48, 8, 3072, 128, 196_608),
    "ministral3": _row(34, 32, 8, 4096, 128, 262_144),
    "mistral": _row(32, 32, 8, 4096, None, 131_072),
    "mixtral": _row(32, 32, 8, 4096, None, 131_072),
    "mllama_text_model": _row(40, 32, 8, 4096, None, 131_072),
    "phi3": _row(32, 32, None, 3072, None, 4096),
    "qwen2": _row(32, 32, 32, 4096, None, 32_768),
    "qwen2_5_omni_text": _row(28, 28, 4, 3584, None, 32_768),
    "qwen2_5_vl_text": _row(80, 64, 8, 8192, None, 32_768),
    "qwen2_vl_text": _row(80, 64, 8, 8192, None, 32_768),
    "qwen3": _row(32, 32, 32, 4096, 128, 32_768),
    "qwen3_moe": _row(24, 32, 4, 2048, None, 32_768),
    "qwen3_next": _row(48, 16, 2, 2048, 256, 32_768, **_GATED),
    "qwen3_5_text": _row(32, 16, 4, 4096, 256, 32_768, **_GATED),
    "qwen3_5_moe_text": _row(40, 16, 2, 2048, 256, 32_768, **_GATED),
    "qwen3_omni_moe_text": _row(28, 28, 4, 2048, None, 32_768),
    "qwen3_vl_text": _row(32, 32, 32, 4096, 128, 128_000),
    "qwen3_vl_moe_text": _row(24, 16, 16, 2048, None, 128_000),
    "seed_oss": _row(64, 80, 8, 4096, 128, 524_288),
    "smollm3": _row(36, 16, 4, 2048, None, 32_768),
    "starcoder2": _row(30, 24, 2, 3072, None, 4096),
}
