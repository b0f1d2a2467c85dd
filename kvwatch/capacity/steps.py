"""The arithmetic, a line for each step, so that a person can check it."""

from __future__ import annotations

from collections import Counter

from kvwatch.capacity.caches import Cache, CacheKind
from kvwatch.capacity.gpu_memory import Budget
from kvwatch.capacity.groups import CacheGroup
from kvwatch.capacity.sizing import Layout, Sizing
from kvwatch.capacity.units import gib, thousands


def of_layout(layout: Layout) -> list[str]:
    """From a layer to a token and to a block."""
    lines = [_layer(layout, cache, count) for cache, count in Counter(layout.model.caches).items()]
    empty = sum(not layer for layer in layout.model.layers)
    if empty:
        lines.append(f"{empty} layers have no cache of their own")
    lines += _token(layout)
    if len(layout.groups) == 1:
        lines.append(_one_group(layout))
    else:
        lines += [_group(group, i) for i, group in enumerate(layout.groups, start=1)]
        lines.append(
            f"A block of the pool, the size of the largest group's, {thousands(layout.bytes_per_block)} B"
        )
    return lines


def of_request(layout: Layout, length: int) -> list[str]:
    """From a length to blocks and bytes."""
    parts = [group.blocks(length, layout.demand) for group in layout.groups]
    blocks = sum(parts)
    shown = f"{' + '.join(map(thousands, parts))} = " if len(parts) > 1 else ""
    line = (
        f"A request of {thousands(length)} tokens: {shown}{thousands(blocks)} blocks ×"
        f" {thousands(layout.bytes_per_block)} B = {gib(layout.needed_bytes(length))} on each GPU"
    )
    return [line]


def of_sizing(sizing: Sizing, budget: Budget) -> list[str]:
    """From memory to blocks, requests and tokens."""
    layout = sizing.layout
    lines = budget.waterfall
    lines.append(
        f"Blocks: {thousands(sizing.memory)} B // {thousands(layout.bytes_per_block)} B ="
        f" {thousands(sizing.num_blocks)}, one of which is never allocated"
    )
    if sizing.length is None or sizing.max_concurrency is None:
        lines.append(f"Tokens: {thousands(sizing.num_blocks)} blocks × {layout.block_size * layout.flags.context}"
                     f" = {thousands(sizing.kv_cache_tokens)}")  # fmt: skip
    else:
        lines.append(
            f"Requests of {thousands(sizing.length)} tokens at once: {thousands(sizing.num_blocks)} /"
            f" {thousands(layout.blocks(sizing.length))} = {sizing.max_concurrency:.2f}"
        )
        lines.append(
            f"Tokens, as vLLM logs them: {sizing.max_concurrency:.2f} × {thousands(sizing.length)}"
            f" = {thousands(sizing.kv_cache_tokens)}"
        )
    return lines


def _layer(layout: Layout, cache: Cache, count: int) -> str:
    tensor, dtype = layout.flags.tensor, layout.dtype
    who = f"{count} {'layer' if count == 1 else 'layers'} of {cache.kind}"
    size = layout.token_bytes(cache)
    per_value = dtype.per_value(layout.model_bytes)
    match cache.kind:
        case CacheKind.STATE:
            held = cache.state.bytes(tensor, layout.model_bytes) if cache.state else 0
            return f"{who}: {thousands(held)} B each, whatever the length"
        case CacheKind.INDEXER:
            return f"{who}: {size} B per token, FP8 values with their scales"
        case CacheKind.LATENT if dtype.latent_bytes:
            return f"{who}: {size} B per token ({dtype.meaning}), whole on every GPU"
        case CacheKind.LATENT:
            return f"{who}: {cache.head_k} values × {per_value:g} B = {size} B per token, whole on every GPU"
    heads = max(1, cache.kv_heads // tensor)
    shared = f" ({cache.kv_heads} over {tensor} GPUs)" if tensor > 1 else ""
    scale = f" + {2 * heads * dtype.scale_bytes} B of scales" if dtype.scale_bytes else ""
    window = f" of {thousands(cache.window)} tokens" if cache.window else ""
    return (
        f"{who}{window}: 2 (K and V) × {heads} KV heads{shared} × {cache.head_k} × {per_value:g} B{scale}"
        f" = {thousands(size)} B per token"
    )


def _token(layout: Layout) -> list[str]:
    lines = []
    kept, windowed = layout.bytes_per_token_per_gpu, layout.windowed_bytes_per_token_per_gpu
    parts = f", on the rank with most of the {len(layout.stages)} parts" if len(layout.stages) > 1 else ""
    context = f", over {layout.flags.context} GPUs" if layout.flags.context > 1 else ""
    if kept:
        lines.append(f"A token that every such layer keeps{parts}{context}: {thousands(kept)} B on each GPU")
    if windowed:
        lines.append(f"And {thousands(windowed)} B more until it falls out of the windows{parts}")
    return lines


def _one_group(layout: Layout) -> str:
    block = layout.groups[0].page.block
    return f"A block of {block} tokens, all layers: {thousands(layout.bytes_per_block)} B"


def _group(group: CacheGroup, number: int) -> str:
    page = group.page
    count = len(group.pages)
    tokens = "a state" if page.cache.kind is CacheKind.STATE else f"{page.block} tokens"
    waste = f", {thousands(page.padded)} B of it unused" if page.padded else ""
    filled = f", and room for {group.filled} that are not there" if group.filled else ""
    return (
        f"Group {number}: {count} {'layer' if count == 1 else 'layers'} of {group.title},"
        f" {tokens} in a page of {thousands(page.bytes)} B{waste}{filled}"
    )
