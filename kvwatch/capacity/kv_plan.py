"""A plan: what the cache of a model holds under given options, memory and lengths; and the same as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvwatch.capacity import steps
from kvwatch.capacity.caches import CacheKind
from kvwatch.capacity.gpu_memory import Budget
from kvwatch.capacity.groups import CacheGroup
from kvwatch.capacity.request_lengths import CONCURRENCIES, memory_table, table_lengths
from kvwatch.capacity.sizing import Flags, Layout, Sizing, sizing_of
from kvwatch.capacity.units import GIB, gib, thousands
from kvwatch.capacity.what_if import Variant, variants

_MAX_SEQS = 1024
"""vLLM's own default for large GPUs; more is seldom of use."""


@dataclass(frozen=True)
class Plan:
    """A plan. Without memory (`budget` None) only what requests need is known, not what fits.

    `memory_with` gives the KV memory of a GPU under other options, bytes. `lengths` are tokens of whole requests by
    percentile, `seqs` the `--max-num-seqs` in question, `name` the model in a `vllm serve` line.
    """

    layout: Layout
    budget: Budget | None
    memory_with: Callable[[Flags], int | None]
    lengths: Mapping[str, int]
    seqs: int | None
    name: str
    assumed: tuple[str, ...] = ()

    @property
    def length(self) -> int | None:
        return self.layout.flags.max_model_len or self.layout.model.max_len

    @cached_property
    def sizing(self) -> Sizing | None:
        """What fits; None without memory, or without a length where the number of tokens depends on one."""
        if self.budget is None or (self.length is None and not self.layout.uniform):
            return None
        return sizing_of(self.layout, self.budget.available)

    @cached_property
    def variants(self) -> list[Variant]:
        return variants(self.layout, self.memory_with) if self.length or self.layout.uniform else []

    @property
    def table_lengths(self) -> list[int]:
        return table_lengths(self.length, self.lengths)

    @cached_property
    def steps(self) -> list[str]:
        lines = steps.of_layout(self.layout)
        for length in dict.fromkeys((*([self.length] if self.length else ()), *self.lengths.values())):
            lines += steps.of_request(self.layout, length)
        if self.seqs and self.length:
            need = self.layout.needed_bytes(self.length)
            lines.append(
                f"{self.seqs} such requests at full length: {self.seqs} × {gib(need)} = {gib(self.seqs * need)}"
            )
        if self.sizing is not None and self.budget is not None:
            lines += steps.of_sizing(self.sizing, self.budget)
        return lines

    @property
    def longest(self) -> int | None:
        """The longest request that fits, if the planned one does not."""
        if self.sizing is None or self.length is None or self.sizing.fits:
            return None
        return self.sizing.longest(self.length)

    @cached_property
    def warnings(self) -> list[str]:
        return [*self._problems(), *self.layout.model.notes, *self.assumed, *self._limits()]

    def _problems(self) -> list[str]:
        found = []
        if self.longest is not None:
            also = (
                f"the longest that fits is {thousands(self.longest)}"
                if self.longest
                else "not even one token fits"
            )
            found.append(
                f"vLLM would not start: a request of {thousands(self.length or 0)} tokens needs"
                f" {gib(self.layout.needed_bytes(self.length or 0))}; {also}"
            )
        over = [name for name, at in self.lengths.items() if self.length and at > self.length]
        if over:
            found.append(
                f"requests of {' and '.join(over)} length exceed --max-model-len: vLLM rejects them with HTTP 400"
            )
        if self.seqs and self.sizing and self.lengths:
            name, length = list(self.lengths.items())[-1]
            fit = self.sizing.concurrency(length)
            if fit < self.seqs:
                found.append(
                    f"of {self.seqs} requests of {name} length (--max-num-seqs) {fit:.1f} fit: the others wait or are"
                    " preempted"
                )
        return found

    def _limits(self) -> list[str]:
        model, found = self.layout.model, []
        if self.layout.dtype.caution:
            found.append(self.layout.dtype.caution)
        if model.has(CacheKind.SLIDING, CacheKind.CHUNKED):
            found.append(
                f"each request holds {thousands(self.layout.demand.in_flight)} tokens in flight in addition to its"
                f" window: --max-num-batched-tokens {self.layout.flags.batched} × {self.layout.flags.pipeline + 1}"
                " steps at once. A smaller value of that option holds fewer"
            )
        if model.has(CacheKind.STATE) and self.layout.flags.prefix_caching:
            found.append(
                "prefix caching keeps states at block ends in addition to those of running requests: under load they"
                " can take a fifth to a quarter of the capacity (--mamba-block-size, --no-enable-prefix-caching)"
            )
        if model.has(CacheKind.CROSS):
            found.append(
                "vLLM reserves --max-num-batched-tokens encoder tokens for each request, however short its audio is"
            )
        found.append(
            "the plan covers the cache only: speculative decoding, LoRA adapters and KV transfer need more memory;"
            " releases before 0.32 may group layers differently"
        )
        return found

    @property
    def _seqs_that_fit(self) -> int | None:
        """Requests of p95 length (else the longest given) that fit at once; None without memory or lengths."""
        if self.sizing is None or not self.lengths:
            return None
        usual = self.lengths.get("p95") or max(self.lengths.values())
        return max(1, min(_MAX_SEQS, int(self.sizing.concurrency(usual))))

    @property
    def serve(self) -> str:
        """A command line that starts vLLM. It has `--max-num-seqs` only if that or lengths are given: at full length
        few requests fit, and a server limited to so few would waste its GPU."""
        flags, words = self.layout.flags, [f"vllm serve {self.name}"]
        length = self.longest or self.length
        if length:
            words.append(f"--max-model-len {length}")
        if seqs := self.seqs or self._seqs_that_fit:
            words.append(f"--max-num-seqs {seqs}")
        words.append(f"--max-num-batched-tokens {flags.batched}")
        if flags.kv_cache_dtype != "auto":
            words.append(f"--kv-cache-dtype {flags.kv_cache_dtype}")
        for name, value in (
            ("tensor-parallel-size", flags.tensor),
            ("pipeline-parallel-size", flags.pipeline),
            ("decode-context-parallel-size", flags.context),
        ):
            if value > 1:
                words.append(f"--{name} {value}")
        if flags.block_size:
            words.append(f"--block-size {flags.block_size}")
        if self.budget and self.budget.utilization:
            words.append(f"--gpu-memory-utilization {self.budget.utilization:g}")
        elif self.budget:
            words.append(f"--kv-cache-memory-bytes {self.budget.available}")
        if not flags.prefix_caching:
            words.append("--no-enable-prefix-caching")
        return " ".join(words)

    def as_data(self) -> dict[str, Any]:
        layout, sizing, length = self.layout, self.sizing, self.length
        need = None if length is None else layout.needed_bytes(length)
        return {
            "model": layout.model.family,
            "kv_cache_dtype": layout.dtype.name,
            "model_dtype": layout.model.dtype,
            "max_model_len": length,
            "max_num_batched_tokens": layout.flags.batched,
            "tensor_parallel_size": layout.flags.tensor,
            "pipeline_parallel_size": layout.flags.pipeline,
            "decode_context_parallel_size": layout.flags.context,
            "block_size": layout.block_size,
            "bytes_per_token_per_gpu": layout.bytes_per_token_per_gpu,
            "windowed_bytes_per_token_per_gpu": layout.windowed_bytes_per_token_per_gpu,
            "bytes_per_token_total": layout.bytes_per_token_total,
            "bytes_per_block": layout.bytes_per_block,
            "groups": [_group(group) for group in layout.groups],
            "needed_gib": None if need is None else need / GIB,
            "needed_gib_at_max_num_seqs": None if need is None or not self.seqs else self.seqs * need / GIB,
            "kv_cache_memory_gib": None if self.budget is None else self.budget.available / GIB,
            "num_blocks": None if sizing is None else sizing.num_blocks,
            "kv_cache_tokens": None if sizing is None else sizing.kv_cache_tokens,
            "max_concurrency": None if sizing is None else sizing.max_concurrency,
            "fits": None if sizing is None else sizing.fits,
            "longest_that_fits": self.longest,
            "served": {name: self._fit(at) for name, at in self.lengths.items()},
            "table": [
                {
                    "tokens": length_,
                    "needed_gib": [n / GIB for n in row],
                    "max_concurrency": self._concurrency(length_),
                }
                for length_, row in zip(
                    self.table_lengths, memory_table(layout, self.table_lengths), strict=True
                )
            ],
            "table_requests": list(CONCURRENCIES),
            "variants": [_variant(one, length) for one in self.variants],
            "serve": self.serve,
            "steps": self.steps,
            "warnings": self.warnings,
        }

    def _fit(self, length: int) -> dict[str, Any]:
        return {
            "tokens": length,
            "needed_gib": self.layout.needed_bytes(length) / GIB,
            "max_concurrency": self._concurrency(length),
        }

    def _concurrency(self, length: int) -> float | None:
        return None if self.sizing is None else self.sizing.concurrency(length)


def _group(group: CacheGroup) -> dict[str, Any]:
    page = group.page
    return {
        "layers": len(group.pages),
        "kind": group.title,
        "block_size": page.block,
        "page_bytes": page.bytes,
        "padded_bytes": page.padded,
        "filled_layers": group.filled,
    }


def _variant(one: Variant, length: int | None) -> dict[str, Any]:
    at = one.layout.flags.max_model_len or length
    return {
        "change": one.change,
        "bytes_per_token_per_gpu": one.layout.bytes_per_token_per_gpu,
        "needed_gib": None if at is None else one.layout.needed_bytes(at) / GIB,
        "kv_cache_memory_gib": None if one.sizing is None else one.sizing.memory / GIB,
        "kv_cache_tokens": None if one.sizing is None else one.sizing.kv_cache_tokens,
        "max_concurrency": None if one.sizing is None else one.sizing.max_concurrency,
        "fits": None if one.sizing is None else one.sizing.fits,
    }
