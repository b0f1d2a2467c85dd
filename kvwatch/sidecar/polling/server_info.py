"""What other endpoints of a vLLM server say, read rarely. All of it may be missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from kvwatch.core.model.server_info import ServerInfo, server_info_from
from kvwatch.sidecar.http_client import BodyError

_TIMEOUT_S = 2.0

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

    version, models = await found("/version"), await found("/v1/models")
    entries = models.get("data") if isinstance(models, dict) else None
    return server_info_from(
        version.get("version") if isinstance(version, dict) else None,
        (
            (model.get("id"), model.get("max_model_len"))
            for model in (entries if isinstance(entries, list) else ())
            if isinstance(model, dict)
        ),
    )
