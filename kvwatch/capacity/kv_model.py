"""A model from its configuration, or from numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.capacity.caches import Cache, CacheKind, Model
from kvwatch.capacity.config import MOST_LAYERS, Config, read
from kvwatch.capacity.dtypes import MODEL_BYTES
from kvwatch.capacity.errors import PlanError, RefusedError
from kvwatch.capacity.families import BY_ARCHITECTURE, BY_MODEL_TYPE, REFUSED, WRAPPERS, ModelFamily
from kvwatch.capacity.parameters import estimate

_FALLBACK_DTYPE = "bfloat16"
_SMALL = {"float32": _FALLBACK_DTYPE, "float": _FALLBACK_DTYPE}


def from_config(data: Any) -> Model:
    """The model that a config.json describes.

    Raises:
        RefusedError: its way of caching is not known here.
        PlanError: the configuration lacks something.
    """
    config = read(data)
    name, family = _family(config)
    try:
        return _model(config, name, family)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError) as error:
        # What a file may hold has no end; each reader names the mistakes that are likely.
        raise PlanError(f"the configuration of {name} does not hold together ({error})") from None


def _model(config: Config, name: str, family: ModelFamily) -> Model:
    layers = family.read(config)
    if not any(layers):
        raise PlanError("no layer of this model keeps anything")
    if family.caution:
        config.notes.append(family.caution)
    cached = [cache for layer in layers for cache in layer]
    if any(cache.state.bytes(1, 1) <= 0 if cache.state else not cache.head_k for cache in cached):
        raise PlanError(
            "by the sizes in the configuration a layer keeps nothing: one of them is 0, or too small"
        )
    states = any(cache.kind is CacheKind.STATE for cache in cached)
    heads = config.aliased("heads") or 0
    dtype = _dtype(config)
    weights = (
        None
        if states or not heads
        else estimate(config, max(c.kv_heads for c in cached), MODEL_BYTES.get(dtype, 2))
    )
    return Model(
        family=f"{name}: {family.title}",
        layers=layers,
        heads=heads,
        dtype=dtype,
        max_len=config.aliased("max_len") or None,
        hidden=config.aliased("hidden"),
        vocab=config.number("vocab_size", 0) or None,
        quantized_cache=_quantized(config),
        parameters=weights[0] if weights else None,
        weight_bytes=weights[1] if weights else None,
        block_size=family.block_size,
        page_heads=(config.kv_heads, config.head_dim, config.head_dim) if states and heads else None,
        notes=tuple(config.notes),
    )


def from_numbers(layers: int, kv_heads: int, head_dim: int) -> Model:
    """A model of ordinary attention with every layer alike.

    Raises:
        PlanError: there are more layers than any model has.
    """
    if layers > MOST_LAYERS:
        raise PlanError(f"--layers {layers}: that is no model; at most {MOST_LAYERS:,}")
    cache = Cache(CacheKind.FULL, kv_heads, head_dim, head_dim)
    return Model(
        f"{layers} attention layers, from the given numbers",
        ((cache,),) * layers,
        heads=0,
        dtype=_FALLBACK_DTYPE,
        notes=(
            "assumed: every layer keeps every token (no sliding windows, no recurrent states, no shared caches)",
        ),
    )


def _family(config: Config) -> tuple[str, ModelFamily]:
    named = config.whole.get("architectures")
    outer = str(named[0]) if isinstance(named, list) and named else ""
    if outer in BY_ARCHITECTURE:
        return outer, BY_ARCHITECTURE[outer]
    if outer in REFUSED:
        raise RefusedError(f"{outer} can't be planned: {REFUSED[outer]}")
    kind = str(config.text.get("model_type") or "")
    inner = config.text.get("architectures") if config.nested else None
    guess = str(inner[0]) if isinstance(inner, list) and inner else BY_MODEL_TYPE.get(kind, "")
    if (outer in WRAPPERS or (not outer and guess)) and guess in BY_ARCHITECTURE:
        return guess, BY_ARCHITECTURE[guess]
    what = outer or kind or "this configuration, which names neither architectures nor model_type,"
    raise RefusedError(
        f"{what[:80]} can't be planned: how its layers cache is not known here, and a guess could be wrong several"
        " times over. If every layer keeps every token, give --layers, --kv-heads and --head-dim; otherwise read the"
        " capacity in vLLM's log"
    )


def _dtype(config: Config) -> str:
    """What vLLM's `--dtype auto` makes of the model's type."""
    own = config.dtype
    if own is None:
        config.notes.append("torch_dtype is not in the configuration: BF16 is assumed")
    elif own in _SMALL:
        config.notes.append(f"vLLM runs a {own} model as BF16 (or FP16), and its cache with it")
    return _SMALL.get(own or _FALLBACK_DTYPE, own or _FALLBACK_DTYPE)


def _quantized(config: Config) -> str | None:
    """The type that `--kv-cache-dtype auto` takes from a ModelOpt checkpoint: `get_kv_cache_quant_algo_string`."""
    own = config.whole.get("quantization_config") or config.text.get("quantization_config")
    if not isinstance(own, Mapping) or not str(own.get("quant_method", "")).startswith("modelopt"):
        return None
    inner = own.get("quantization", own)
    scheme = next(
        (
            part[key]
            for key in ("kv_cache_scheme", "kv_cache_quant_algo")
            for part in (inner, own)
            if isinstance(part, Mapping) and part.get(key)
        ),
        None,
    )
    if isinstance(scheme, Mapping):
        bits = scheme.get("num_bits") if scheme.get("type") == "float" else None
        return "fp8" if bits == 8 and scheme.get("dynamic") is False else "nvfp4" if bits == 4 else None
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(scheme).lower())
