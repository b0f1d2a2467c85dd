"""How the layers of each kind of model cache: from a configuration to the caches of every layer.

Each reader follows the model class in vLLM 0.32 (`model_executor/models/`), and where a key is absent the default of
the model's configuration class in transformers 5, which vLLM loads it with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvwatch.capacity.caches import Cache, CacheKind
from kvwatch.capacity.config import Config
from kvwatch.capacity.errors import PlanError

Layers = tuple[tuple[Cache, ...], ...]
FULL, _SLIDING = "full_attention", "sliding_attention"


def attention(config: Config, window: int = 0, **own: int) -> Cache:
    """A layer of ordinary attention; `window` 0 looks back at everything."""
    size = own.get("head_dim") or config.head_dim
    return Cache(
        CacheKind.SLIDING if window else CacheKind.FULL,
        kv_heads=own.get("kv_heads") or config.kv_heads,
        head_k=size,
        head_v=size,
        window=window,
    )


def plain(config: Config) -> Layers:
    """All layers alike. As vLLM: a `sliding_window` holds for all of them, unless `layer_types` says which."""
    types, window = config.listed("layer_types"), config.number("sliding_window", 0)
    if types is None or all(kind == _SLIDING for kind in types):
        return tuple((attention(config, window),) for _ in range(config.layers))
    return by_types(config, types, window)


def unwindowed(config: Config) -> Layers:
    """All layers alike, and none looks back through a window, whatever the configuration says."""
    return tuple((attention(config),) for _ in range(config.layers))


def by_types(config: Config, types: Sequence[object], window: int) -> Layers:
    strange = {str(kind) for kind in types} - {FULL, _SLIDING}
    if strange:
        raise PlanError(f"layer_types names {min(strange)[:40]}, which this model's class does not know")
    if not window and _SLIDING in types:
        raise PlanError("layer_types names sliding_attention, but sliding_window is not in the configuration")
    return tuple((attention(config, window if kind == _SLIDING else 0),) for kind in types)


def switched(config: Config) -> Layers:
    """Qwen 2 and 3: `sliding_window` counts only with `use_sliding_window`, and only if it holds for all layers."""
    if config.get("use_sliding_window", False) and not config.number("max_window_layers", 28):
        return plain(config)
    return unwindowed(config)


def always(window: int) -> Callable[[Config], Layers]:
    """As `plain`, with the window that the configuration class has where the file is silent."""

    def read(config: Config) -> Layers:
        if "sliding_window" in config.text or config.get("layer_types"):
            return plain(config)
        config.notes.append(f"sliding_window is not in the configuration: {window}, its class's default")
        return tuple((attention(config, window),) for _ in range(config.layers))

    return read


def alternating(every: int, window: int, *, wider: int = 0) -> Callable[[Config], Layers]:
    """Every so many layers one looks at everything, the others through a window.

    `layer_types` says which where it is there, `sliding_window_pattern` how many. `wider`: tokens that the class adds
    to the window.
    """

    def read(config: Config) -> Layers:
        types = config.listed("layer_types") or _pattern(config, every)
        return by_types(config, types, config.number("sliding_window", window) + wider)

    return read


def _pattern(config: Config, every: int) -> list[str]:
    """Kinds of layers after `sliding_window_pattern`: every so many, or letters as ``LLLG`` (the last one is G)."""
    pattern, count = config.get("sliding_window_pattern", every), config.layers
    if isinstance(pattern, str) and pattern and not set(pattern) - set("LG"):
        local = [pattern[i % len(pattern)] == "L" and i < count - 1 for i in range(count)]
    else:
        period = config.number("sliding_window_pattern", every)
        local = [bool(period and (i + 1) % period) for i in range(count)]
    return [_SLIDING if one else FULL for one in local]


def gpt_oss(config: Config) -> Layers:
    """Every second layer through a window, the first included, whatever `layer_types` says."""
    window = config.number("sliding_window", 128)
    return tuple((attention(config, 0 if i % 2 else window),) for i in range(config.layers))


def chunked(config: Config) -> Layers:
    """Llama 4: layers with rotary positions look back within a chunk, those without at everything."""
    interval = config.number("no_rope_layer_interval", 4)
    rope = config.listed("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(config.layers)]
    chunk = config.number("attention_chunk_size", 8192)
    size = config.head_dim
    local = Cache(CacheKind.CHUNKED, config.kv_heads, size, size, chunk)
    return tuple((local,) if rotary and chunk else (attention(config),) for rotary in rope)


def shared(period: int) -> Callable[[Config], Layers]:
    """Gemma 3n and 4: the last `num_kv_shared_layers` layers use the caches of earlier ones. Gemma 4's layers that
    look at everything have heads of their own number and size."""

    def read(config: Config) -> Layers:
        types = list(
            config.listed("layer_types")
            or (FULL if (i + 1) % period == 0 else _SLIDING for i in range(config.layers))
        )
        heads: dict[str, int] = {}
        if config.get("model_type", "").startswith("gemma4"):
            types[-1] = FULL  # as its configuration class does
            heads["head_dim"] = config.number("global_head_dim", 512)
            if config.get("attention_k_eq_v", False):
                heads["kv_heads"] = config.number("num_global_key_value_heads", 0)
        first_shared = config.layers - config.number("num_kv_shared_layers", 0)
        window = config.number("sliding_window", 512)
        return tuple(
            ()
            if i >= first_shared
            else (attention(config, window),)
            if kind == _SLIDING
            else (attention(config, **heads),)
            for i, kind in enumerate(types)
        )

    return read


def latent(config: Config) -> Layers:
    """DeepSeek's latent attention: a vector of `kv_lora_rank` + `qk_rope_head_dim` values, whatever the heads."""
    if not config.get("kv_lora_rank"):
        raise PlanError("kv_lora_rank is not in the configuration, so its attention is not latent")
    cache = Cache(CacheKind.LATENT, 1, config.number("kv_lora_rank") + config.number("qk_rope_head_dim"))
    return tuple((cache,) for _ in range(config.layers))


def sparse(config: Config) -> Layers:
    """DeepSeek V3.2, GLM with sparse attention: an indexer beside the latent vector, on all layers or on some.

    A token of the indexer: `index_head_dim` FP8 values and a scale of 4 bytes for each 128.
    """
    size = config.number("index_head_dim", 128)
    indexer = Cache(CacheKind.INDEXER, 1, size + size // 128 * 4)
    every, offset = config.number("index_topk_freq", 1), config.number("index_skip_topk_offset", 2)
    pattern = config.get("index_topk_pattern")

    def has(i: int) -> bool:
        if pattern is not None:
            return i >= len(pattern) or pattern[i] != "S"
        return max(i - offset + 1, 0) % max(every, 1) == 0

    return tuple((*layer, indexer) if has(i) else layer for i, layer in enumerate(latent(config)))


def falcon(config: Config) -> Layers:
    """Falcon: one KV head for all, unless it is of the new architecture."""
    if config.get("new_decoder_architecture", False):
        heads = config.number("num_kv_heads", config.needed("heads"))
    else:
        heads = 1 if config.get("multi_query", True) else config.needed("heads")
    return tuple((attention(config, kv_heads=heads),) for _ in range(config.layers))


def chatglm(config: Config) -> Layers:
    heads = (
        config.number("multi_query_group_num")
        if config.get("multi_query_attention", False)
        else config.needed("heads")
    )
    size = config.needed("hidden") // config.needed("heads")
    return tuple((attention(config, kv_heads=heads, head_dim=size),) for _ in range(config.layers))


def by_blocks(config: Config) -> Layers:
    """Nemotron NAS: `block_configs` says of each layer how many query heads share a KV head, or that none attends."""
    blocks = config.listed("block_configs")
    if blocks is None:
        raise PlanError("block_configs is not in the configuration")
    found: list[tuple[Cache, ...]] = []
    for block in blocks:
        own = block["attention"]
        if own.get("no_op") or own.get("replace_with_linear"):
            found.append(())
        else:
            heads = config.needed("heads") // own["n_heads_in_group"]
            found.append((attention(config, kv_heads=heads),))
    return tuple(found)


def dbrx(config: Config) -> Layers:
    own = config.get("attn_config")
    heads = own.get("kv_n_heads") if isinstance(own, dict) else None
    if not isinstance(heads, int):
        raise PlanError("attn_config.kv_n_heads is not in the configuration")
    return tuple((attention(config, kv_heads=heads),) for _ in range(config.layers))


def whisper(config: Config) -> Layers:
    """Each decoder layer keeps its own tokens and the encoder's; the encoder keeps nothing."""
    heads = config.number("decoder_attention_heads")
    size = config.number("d_model") // heads
    own = Cache(CacheKind.FULL, heads, size, size)
    cross = Cache(CacheKind.CROSS, heads, size, size)
    return tuple((own, cross) for _ in range(config.number("decoder_layers")))
