"""What other endpoints of a vLLM server say, read rarely. All of it may be missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from kvwatch.core.model.server_info import ServerInfo
from kvwatch.sidecar.http_client import BodyError

_TIMEOUT_S = 2.0
_MOST_MODELS, _MOST_CHARACTERS = 1000, 1000
"""Models that are told of, and characters of a name: each is a label."""

HttpAnswer = tuple[int, bytes]
"""HTTP status and body."""


async def read_server_info(metrics_url: str, get: Callable[[str], Awaitable[HttpAnswer]]) -> ServerInfo:
    """Version and longest request of a server, from its root. Never raises; what can't be had is None."""
    parts = urlsplit(metrics_url)
    root = parts.path.rstrip("/").removesuffix("/metrics")

    async def found(path: str) -> Any:
        url = urlunsplit((parts.scheme, parts.netloc, root + path, "", ""))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, body = await get(url)
            return json.loads(body) if status == 200 else None
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            httpx.StreamError,
            OSError,
            ValueError,
            RecursionError,
            BodyError,
        ):
            return None

    return ServerInfo(
        version=_version(await found("/version")), max_model_len=_lengths(await found("/v1/models"))
    )


def _version(answer: Any) -> str | None:
    version = answer.get("version") if isinstance(answer, dict) else None
    return version[:100] if isinstance(version, str) and version else None


def _lengths(answer: Any) -> dict[str, int] | None:
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    found = {}
    for model in models[:_MOST_MODELS]:
        if not isinstance(model, dict):
            continue
        name, length = model.get("id"), model.get("max_model_len")
        if not isinstance(name, str) or len(name) > _MOST_CHARACTERS:
            continue
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            found[name] = length
    return found or None
