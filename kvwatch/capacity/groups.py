"""Pages and groups, as vLLM 0.32 lays out the cache (`v1/core/kv_cache_utils.py`).

A *page* is one layer's part of a block. All groups of layers draw their blocks from one pool, so every group's
block takes the same bytes; a request holds blocks of every group. Layers of one kind are one group. A model of
several kinds has its pages made equal first, then groups of equally many layers, filled up with nothing where a kind
has a few less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvwatch.capacity.caches import GROWING, LOCAL, Cache, CacheKind, Demand
from kvwatch.capacity.errors import RefusedError
from kvwatch.capacity.units import ceil_div

_MUCH_LARGER = 1.5
"""Kinds whose numbers of layers differ by less are one group each, filled up
(`_get_kv_cache_groups_uniform_page_size`)."""


@dataclass(frozen=True, slots=True)
class CachePage:
    """One layer's part of a block: `bytes` for `block` tokens, `padded` of them unused."""

    cache: Cache
    block: int
    bytes: int
    padded: int = 0


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table: their pages by the layer they belong to. `filled` layers hold nothing."""

    pages: tuple[tuple[int, CachePage], ...]
    filled: int = 0

    @property
    def page(self) -> CachePage:
        return self.pages[0][1]

    def blocks(self, length: int, demand: Demand) -> int:
        """Blocks that a request of that length holds of this group."""
        return max(page.cache.blocks(length, page.block, demand) for _, page in self.pages)

    def bytes_per_block(self, stage: range) -> int:
        """What a block takes on the rank that holds the layers of `stage`."""
        return sum(page.bytes for layer, page in self.pages if layer in stage)

    @property
    def title(self) -> str:
        kinds = dict.fromkeys(str(page.cache.kind) for _, page in self.pages)
        return " + ".join(kinds)


def grouped(pages: Sequence[tuple[int, CachePage]]) -> tuple[CacheGroup, ...]:
    """The groups of a model's pages."""
    if len({_sameness(page) for _, page in pages}) == 1:
        return (CacheGroup(tuple(pages)),)
    return tuple(_equal_groups(_equal_pages(pages)))


def _sameness(page: CachePage) -> tuple[object, ...]:
    """Pages that are alike in this always need as many blocks, so they are one group (`is_uniform_type`)."""
    cache = page.cache
    kind = CacheKind.FULL if cache.kind in GROWING else cache.kind
    own: object = page.bytes if kind is CacheKind.STATE else cache.window if kind in LOCAL else None
    return kind, page.block, own


def _equal_pages(pages: Sequence[tuple[int, CachePage]]) -> list[tuple[int, CachePage]]:
    """Every page as large as the largest: with more tokens to the block where that comes out even, else padded
    (`unify_kv_cache_spec_page_size`)."""
    largest = max(page.bytes for _, page in pages)
    return [(layer, _enlarged(page, largest)) for layer, page in pages]


def _enlarged(page: CachePage, size: int) -> CachePage:
    if page.bytes == size:
        return page
    if page.cache.kind is not CacheKind.STATE and size % page.bytes == 0:
        return replace(page, block=page.block * (size // page.bytes), bytes=size)
    if page.cache.kind in {CacheKind.LATENT, CacheKind.INDEXER}:
        raise RefusedError(
            "vLLM can't give latent attention and the other layers of this model blocks of one size:"
            " it would not start"
        )
    return replace(page, bytes=size, padded=page.padded + size - page.bytes)


def _equal_groups(pages: Sequence[tuple[int, CachePage]]) -> list[CacheGroup]:
    alike: dict[CachePage, list[tuple[int, CachePage]]] = {}
    for layer, page in pages:
        alike.setdefault(page, []).append((layer, page))
    fewest, most = min(map(len, alike.values())), max(map(len, alike.values()))
    size = most if most < fewest * _MUCH_LARGER else fewest
    found = []
    for members in alike.values():
        count = ceil_div(len(members), size)
        found += [
            CacheGroup(tuple(part), size - len(part)) for part in (members[i::count] for i in range(count))
        ]
    return found


def stages(layers: int, pipeline: int) -> list[range]:
    """The layers of each pipeline rank: what is left over goes to the middle ranks, the last but one first
    (`get_pp_indices`)."""
    counts = [layers // pipeline] * pipeline
    for i in range(2, layers % pipeline + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(pipeline)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
