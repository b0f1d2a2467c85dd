"""How layers with a state of constant size cache: Mamba, linear attention, short convolutions, beside attention.

As `layers`, from the `get_mamba_state_shape_from_config` and `..._dtype_...` of the model classes in vLLM 0.32.
"""

from __future__ import annotations

from kvwatch.capacity.caches import Cache, CacheKind, RecurrentState
from kvwatch.capacity.config import Config
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.layers import FULL, Layers, attention

#: Bytes of the types that a recurrent state may be kept in; None: the model's.
_STATE_BYTES = {"auto": None, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


def jamba(config: Config) -> Layers:
    """Jamba: one layer in `attn_layer_period` attends, the others are Mamba 1."""
    period, offset = config.number("attn_layer_period", 8), config.number("attn_layer_offset", 4)
    state = _mamba1(
        config.number("mamba_expand", 2) * config.needed("hidden"),
        config.number("mamba_d_state", 16),
        config.number("mamba_d_conv", 4),
    )
    return tuple((attention(config) if i % period == offset else state,) for i in range(config.layers))


def mamba(config: Config) -> Layers:
    inner = config.number("intermediate_size", config.number("expand", 2) * config.needed("hidden"))
    state = _mamba1(inner, config.number("state_size", 16), config.number("conv_kernel", 4))
    return tuple((state,) for _ in range(config.layers))


def mamba2(config: Config) -> Layers:
    state = _mamba2(
        config.number("expand", 2) * config.needed("hidden"),
        config.number("n_groups", 8),
        (config.number("num_heads", 128), config.number("head_dim", 64), config.number("state_size", 128)),
        config.number("conv_kernel", 4),
    )
    return tuple((state,) for _ in range(config.layers))


def nemotron_h(config: Config) -> Layers:
    """Nemotron-H: `hybrid_override_pattern` says of each layer if it is Mamba 2 (M), attention (*) or neither; files
    that transformers 5 wrote have a list of words instead."""
    types = config.get("layers_block_type") or config.get("layer_types")
    pattern: object = config.get("hybrid_override_pattern")
    if isinstance(types, list):
        pattern = "".join(_NEMOTRON_LETTERS.get(str(kind), "?") for kind in types)
    if not isinstance(pattern, str) or set(pattern) - set("M*-E"):
        raise PlanError(
            "neither hybrid_override_pattern (of M, *, - and E) nor layers_block_type (of mamba, attention, mlp and"
            " moe) is in the configuration, or it says more than that"
        )
    heads, size = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    state = _mamba2(
        heads * size,
        config.number("n_groups"),
        (heads, size, config.number("ssm_state_size")),
        config.number("conv_kernel"),
        _state_bytes(config, "mamba_ssm_cache_dtype", "float32"),
    )
    kept = {"M": (state,), "*": (attention(config, config.number("sliding_window", 0)),)}
    return tuple(kept.get(letter, ()) for letter in pattern)


_NEMOTRON_LETTERS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"
}  # fmt: skip


def granite_hybrid(config: Config) -> Layers:
    types = config.listed("layer_types") or config.listed("layers_block_type")
    if types is None or set(types) - {"attention", "mamba", FULL, "linear_attention"}:
        raise PlanError("layer_types is not in the configuration, or names more than attention and mamba")
    state = _granite_state(config, config.number("mamba_expand", 2) * config.needed("hidden"))
    return tuple((attention(config) if kind in {"attention", FULL} else state,) for kind in types)


def falcon_h1(config: Config) -> Layers:
    """Falcon-H1: every layer attends and has a state besides."""
    inner = config.number("mamba_d_ssm", 0) or config.number("mamba_expand", 2) * config.needed("hidden")
    return tuple((_granite_state(config, inner), attention(config)) for _ in range(config.layers))


def linear(config: Config) -> Layers:
    """Qwen3-Next, Qwen3.5, Olmo Hybrid: gated delta nets, every so many layers one that attends."""
    interval = config.number("full_attention_interval", 4)
    types = config.listed("layer_types") or [
        "linear_attention" if (i + 1) % interval else FULL for i in range(config.layers)
    ]
    if set(types) - {"linear_attention", FULL}:
        raise PlanError("layer_types names more than linear_attention and full_attention")
    k_heads, v_heads = config.number("linear_num_key_heads"), config.number("linear_num_value_heads")
    k_size, v_size = config.number("linear_key_head_dim"), config.number("linear_value_head_dim")
    cache = Cache(
        CacheKind.STATE,
        state=RecurrentState(
            rows=config.number("linear_conv_kernel_dim") - 1,
            inner=2 * k_size * k_heads + v_size * v_heads,
            recurrent=v_heads * v_size * k_size,
            recurrent_bytes=_state_bytes(config, "mamba_ssm_dtype", "auto"),
        ),
    )
    return tuple((attention(config) if kind == FULL else cache,) for kind in types)


def short_conv(config: Config) -> Layers:
    """LFM2: short convolutions, and layers that attend."""
    types = config.listed("layer_types")
    if types is None:
        attends = config.get("full_attn_idxs", range(config.layers))
        types = [FULL if i in attends else "conv" for i in range(config.layers)]
    width = config.number("conv_dim", config.needed("hidden"))
    state = Cache(
        CacheKind.STATE,
        state=RecurrentState(rows=config.number("conv_L_cache") - 1, inner=width, recurrent=0),
    )
    return tuple((attention(config) if kind == FULL else state,) for kind in types)


def _mamba1(inner: int, size: int, kernel: int) -> Cache:
    return Cache(CacheKind.STATE, state=RecurrentState(rows=kernel - 1, inner=inner, recurrent=inner * size))


def _mamba2(
    inner: int, groups: int, heads: tuple[int, int, int], kernel: int, recurrent_bytes: int | None = None
) -> Cache:
    count, size, state = heads
    return Cache(
        CacheKind.STATE,
        state=RecurrentState(
            kernel - 1, inner, count * size * state, recurrent_bytes, groups, 2 * state, checkpoints=1
        ),
    )


def _granite_state(config: Config, inner: int) -> Cache:
    size = config.get("mamba_d_head", "auto")
    heads = config.number("mamba_n_heads", 128)
    return _mamba2(
        inner,
        config.number("mamba_n_groups", 1),
        (heads, inner // heads if size == "auto" else config.number("mamba_d_head"), config.number("mamba_d_state")),
        config.number("mamba_d_conv", 4),
    )  # fmt: skip


def _state_bytes(config: Config, key: str, default: str) -> int | None:
    name = config.get(key, default)
    if name not in _STATE_BYTES:
        raise PlanError(f"{key} in the configuration is {name!r}, a type of state that is not known here")
    return _STATE_BYTES[name]
