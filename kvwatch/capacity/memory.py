"""How much of a GPU is left for the cache: total × utilisation − weights − what else vLLM takes.

The last is an estimate, and said to be one. vLLM measures it when it starts (a forward pass of
`--max-num-batched-tokens`, and CUDA graphs): its log line `Available KV cache memory` is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.capacity.caches import Model
from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.units import GIB, gib, thousands

#: CUDA context, communication buffers, graphs: what a GPU of a usual server spends before the first activation.
_FIXED = GIB * 3 // 2
#: Activations alive at once in a forward pass, in vectors of the hidden size.
_VECTORS = 12


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory for the cache of one GPU, bytes. Given directly, the parts are None."""

    available: int
    total: int | None = None
    utilization: float | None = None
    weights: int | None = None
    overhead: int | None = None
    how: tuple[str, ...] = ()

    @property
    def waterfall(self) -> list[str]:
        """The arithmetic, a line each."""
        if self.total is None or self.utilization is None or self.weights is None or self.overhead is None:
            return [f"KV cache memory of each GPU, as given: {gib(self.available)}"]
        asked = int(self.total * self.utilization)
        return [
            f"GPU memory × utilization: {gib(self.total)} × {self.utilization:g} = {gib(asked)}",
            f"− weights of one GPU: {gib(self.weights)}",
            f"− what else vLLM takes (an estimate): {gib(self.overhead)}",
            f"= KV cache memory of each GPU: {gib(self.available)}",
        ]


def from_gpu(
    total: int, utilization: float, weights: int, overhead: int | None, *, model: Model, batched: int
) -> Budget:
    """What is left of a GPU.

    `weights` of one GPU. `overhead` None: estimated.

    Raises:
        PlanError: nothing is left.
    """
    estimated = overhead is None
    overhead = _estimated(model, batched) if overhead is None else overhead
    available = int(total * utilization) - weights - overhead
    if available <= 0:
        raise PlanError(
            f"nothing is left for the cache: {gib(total)} × {utilization:g} − {gib(weights)} of weights"
            f" − {gib(overhead)}{' (an estimate; --overhead sets it)' if estimated else ''}; more or larger GPUs,"
            " --tensor-parallel-size, or quantized weights"
        )
    how = (_how(batched),) if estimated else ()
    return Budget(available, total, utilization, weights, overhead, how)


def _estimated(model: Model, batched: int) -> int:
    return _FIXED + _VECTORS * 2 * (model.hidden or 8192) * batched


def _how(batched: int) -> str:
    return (
        f"the overhead is an estimate: {gib(_FIXED)} for CUDA, communication and graphs, and {_VECTORS} vectors of"
        f" the hidden size for each of {thousands(batched)} tokens of a step; vLLM measures it and logs"
        " `Available KV cache memory`"
    )
