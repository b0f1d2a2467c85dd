"""Memory of one GPU for the cache: total × utilization − weights − everything else that vLLM needs.

The last is an estimate. vLLM measures it at start (a forward pass of `--max-num-batched-tokens`, and CUDA graphs) and
logs the result as `Available KV cache memory`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvwatch.capacity.caches import Model
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.units import GIB, gib, thousands

_FIXED = GIB * 3 // 2
"""CUDA context, communication buffers and graphs on a usual GPU, before the first activation."""
_VECTORS = 12
"""Activations alive at once in a forward pass, in vectors of the hidden size."""
_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory for the cache of one GPU, bytes. Where it was given directly, the parts are None."""

    available: int
    total: int | None = None
    utilization: float | None = None
    weights: int | None = None
    overhead: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def waterfall(self) -> list[str]:
        """The arithmetic, one line a step."""
        if self.total is None or self.utilization is None or self.weights is None or self.overhead is None:
            return [f"KV cache memory of each GPU, as given: {gib(self.available)}"]
        usable = int(self.total * self.utilization)
        return [
            f"GPU memory × utilization: {gib(self.total)} × {self.utilization:g} = {gib(usable)}",
            f"− weights on one GPU: {gib(self.weights)}",
            f"− activations, CUDA graphs and the like (estimate): {gib(self.overhead)}",
            f"= KV cache memory of each GPU: {gib(self.available)}",
        ]


def budget_of_gpu(
    total: int,
    utilization: float,
    weights: int,
    overhead: int | None,
    *,
    model: Model,
    batched: int,
    notes: tuple[str, ...] = (),
) -> Budget:
    """The memory left on a GPU of `total` bytes that holds `weights` bytes. `overhead` None: estimated.

    Raises:
        PlanError: nothing is left.
    """
    estimated = overhead is None
    if overhead is None:
        overhead = _FIXED + _VECTORS * 2 * (model.hidden or 8192) * batched
        note = (
            f"the overhead is an estimate: {gib(_FIXED)} for CUDA, communication and graphs, plus {_VECTORS} vectors"
            f" of the hidden size for each of {thousands(batched)} tokens of a step. vLLM measures it and logs"
            " `Available KV cache memory`"
        )
        notes = (*notes, note)
    available = int(total * utilization) - weights - overhead
    if available <= 0:
        raise PlanError(
            f"no memory is left for the cache: {gib(total)} × {utilization:g} − {gib(weights)} of weights"
            f" − {gib(overhead)}{' (an estimate; --overhead sets it)' if estimated else ''}. Use more or larger GPUs,"
            " --tensor-parallel-size, or quantized weights"
        )
    return Budget(available, total, utilization, weights, overhead, notes)


def weights_beside(config: Path) -> int | None:
    """Bytes of all weights in the folder of a config.json; None if there are none."""
    folder = config.parent
    if (folder / _INDEX).is_file():
        return weights_in(folder / _INDEX)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None


def weights_in(path: Path) -> int:
    """Bytes of all weights: of an index, of a .safetensors file, or of a folder that has either.

    Raises:
        PlanError: there are none, or the index can't be read.
    """
    if path.is_dir():
        found = weights_beside(path / "config.json")
        if found is None:
            raise PlanError(f"--weights {path}: this folder has no {_INDEX} and no *.safetensors")
        return found
    try:
        if path.suffix == ".safetensors":
            return path.stat().st_size
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise PlanError(f"--weights {path}: too large for an index; give the folder of the model")
        size = json.loads(path.read_text(encoding="utf-8"))["metadata"]["total_size"]
    except OSError as error:
        raise PlanError(f"--weights {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PlanError(f"--weights {path}: not an index of safetensors (metadata.total_size)") from None
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < float("inf"):
        raise PlanError(f"--weights {path}: metadata.total_size is not a number of bytes")
    return int(size)
