"""The size of a stored number: the types of `--kv-cache-dtype`, a row each.

Sizes are those of vLLM 0.32: `customize_spec` of the attention backends (Triton for scales per token and head,
FlashInfer for NVFP4) and `MLAAttention.get_kv_cache_spec` for latent attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwatch.capacity.errors import PlanError

_SIXTEENTHS = 16


@dataclass(frozen=True, slots=True)
class CacheDtype:
    """One type of cache.

    `sixteenths` of a byte that a value takes, the scales of groups of values included; None: that of the model.
    `scale_bytes` a scale for each token, head and side (K, V). `latent_bytes`: a whole latent vector with its
    scales, where the format fixes it (latent rank 512, rope 64). `plain`, `latent`: which attention can store it.
    """

    name: str
    sixteenths: int | None
    meaning: str
    scale_bytes: int = 0
    latent_bytes: int | None = None
    plain: bool = True
    latent: bool = True
    caution: str = ""

    def head_bytes(self, size: int, model_bytes: int) -> int:
        """K or V of one token and head."""
        return self._values(size, model_bytes) + self.scale_bytes

    def latent_token_bytes(self, width: int, model_bytes: int) -> int:
        """The latent vector of one token."""
        return self._values(width, model_bytes) if self.latent_bytes is None else self.latent_bytes

    def _values(self, count: int, model_bytes: int) -> int:
        sixteenths = self.sixteenths if self.sixteenths is not None else model_bytes * _SIXTEENTHS
        return count * sixteenths // _SIXTEENTHS

    def per_value(self, model_bytes: int) -> float:
        """Bytes of a value, without scales of their own."""
        return (self.sixteenths if self.sixteenths is not None else model_bytes * _SIXTEENTHS) / _SIXTEENTHS


_FP8 = (
    "FP8 needs right scales and a GPU, an attention backend and a model that support it: compare answers on long"
    " contexts before relying on it"
)
_FOUR = "4-bit caches cost accuracy, and few GPUs and backends have them: measure quality first"

DTYPES: Mapping[str, CacheDtype] = {
    row.name: row
    for row in (
        CacheDtype("auto", None, "the model's own type"),
        CacheDtype("bfloat16", 32, "BF16"),
        CacheDtype("float16", 32, "FP16"),
        CacheDtype("fp8", 16, "FP8 (E4M3)", caution=_FP8),
        CacheDtype("fp8_e4m3", 16, "FP8 (E4M3)", caution=_FP8),
        CacheDtype("fp8_e5m2", 16, "FP8 (E5M2)", caution=_FP8),
        CacheDtype(
            "fp8_ds_mla",
            16,
            "DeepSeek's FP8: 512 values, 4 scales of 4 bytes and 64 rotary values in BF16 are 656 bytes",
            latent_bytes=656,
            plain=False,
            caution=_FP8,
        ),
        CacheDtype(
            "fp8_per_token_head",
            16,
            "FP8 with a scale for each token and head",
            scale_bytes=4,
            latent=False,
            caution=_FP8,
        ),
        CacheDtype(
            "int8_per_token_head",
            16,
            "INT8 with a scale for each token and head",
            scale_bytes=4,
            latent=False,
            caution="INT8 caches run on the Triton backend only: measure speed and quality first",
        ),
        CacheDtype(
            "int4_per_token_head",
            8,
            "INT4 with a scale for each token and head",
            scale_bytes=4,
            latent=False,
            caution=_FOUR,
        ),
        CacheDtype(
            "nvfp4", 9, "4 bits and an FP8 scale for each 16 values", latent=False, caution=_FOUR
        ),
        CacheDtype(
            "nvfp4_ds_mla", 9, "NVFP4 of DeepSeek's latent vector: 352 bytes", latent_bytes=352, plain=False,
            caution=_FOUR,
        ),
    )
}  # fmt: skip
#: Types of models, and the bytes of a value.
MODEL_BYTES: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
}


def cache_dtype(name: str) -> CacheDtype:
    """The row of a `--kv-cache-dtype`.

    Raises:
        PlanError: the type does not exist, or its size is unknown.
    """
    found = DTYPES.get(name)
    if found is None:
        raise PlanError(f"--kv-cache-dtype {name}: size unknown; known types are {', '.join(DTYPES)}")
    return found
