"""An estimate of a model's weights from its configuration, where its files are not at hand.

Counts the large matrices: embeddings, attention (grouped-query or latent), and feed-forward layers or experts. Models
with recurrent states are not estimated: their matrices have no common names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvwatch.capacity.config import Config

_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_METHOD_BITS = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "awq": 4.25,
    "gptq": 4.25,
    "bitsandbytes": 4.5,
}
"""Bits a parameter by quantization method, scales included, where the configuration gives no number."""
_UNGATED = frozenset({"falcon", "gpt_bigcode", "gpt_neox", "phi", "starcoder2"})
"""Model types whose feed-forward layers have two matrices instead of three."""


def estimate(config: Config, kv_heads: int, model_bytes: int) -> tuple[int, int] | None:
    """Parameters and bytes of all weights; None where they can't be estimated.

    `kv_heads` are those of a layer, `model_bytes` the size of an unquantized parameter.
    """
    hidden, vocab = config.aliased("hidden"), config.number("vocab_size", 0)
    layers = _feed_forward(config, hidden) if hidden else None
    if (
        not hidden
        or not vocab
        or layers is None
        or config.get("is_encoder_decoder")
        or config.get("vocab_size_per_layer_input")
    ):
        return None
    layers += config.layers * _attention(config, hidden, kv_heads)
    tied = config.get("tie_word_embeddings", str(config.get("model_type")).startswith("gemma"))
    embeddings = vocab * hidden * (1 if tied else 2)
    bits = _bits(config)
    layer_bytes = layers * model_bytes if bits is None else round(layers * bits / 8)
    return embeddings + layers, embeddings * model_bytes + layer_bytes


def _attention(config: Config, hidden: int, kv_heads: int) -> int:
    heads, rank = config.needed("heads"), config.number("kv_lora_rank", 0)
    if not rank:
        return hidden * config.head_dim * 2 * (heads + kv_heads)
    rotary, value = config.number("qk_rope_head_dim"), config.number("v_head_dim")
    key = config.number("qk_nope_head_dim") + rotary
    query_rank = config.number("q_lora_rank", 0)
    query = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
    return query + hidden * (rank + rotary) + rank * heads * (key - rotary + value) + heads * value * hidden


def _feed_forward(config: Config, hidden: int) -> int | None:
    ungated = config.get("model_type") in _UNGATED
    width = (
        config.number("intermediate_size", 0) or config.number("n_inner", 0) or (4 * hidden if ungated else 0)
    )
    experts = next((count for key in _EXPERTS if (count := config.number(key, 0))), 0)
    if not width or (not experts and config.get("num_experts_per_tok")):
        return None
    if not experts:
        return config.layers * (2 if ungated else 3) * hidden * width
    own = config.number("moe_intermediate_size", 0) or width
    shared = config.number("n_shared_experts", 0) * own + config.number("shared_expert_intermediate_size", 0)
    dense = config.number("first_k_dense_replace", 0)
    return 3 * hidden * (dense * width + (config.layers - dense) * (experts * own + shared))


def _bits(config: Config) -> float | None:
    """Bits of a quantized parameter; None if the weights are not quantized."""
    own = config.whole.get("quantization_config") or config.text.get("quantization_config")
    if not isinstance(own, Mapping):
        return None
    found = next(_numbers(own, ("bits", "weight_bits", "w_bit", "num_bits")), None)
    return (
        found + 0.25
        if found is not None and found < 8
        else found or _METHOD_BITS.get(str(own.get("quant_method")))
    )


def _numbers(data: Any, keys: Iterable[str]) -> Iterator[float]:
    if isinstance(data, Mapping):
        yield from (data[key] for key in keys if isinstance(data.get(key), int | float))
        for name in ("config_groups", "weights", *(key for key in data if str(key).startswith("group_"))):
            yield from _numbers(data.get(name), keys)
