"""Addresses in the page: names, URLs and element ids of engines and findings."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from kvwatch.core.model.snapshot import EngineKey

ENGINE_PATH = "/engine"
"""Path of the page of one engine."""


def where(key: EngineKey) -> tuple[str, ...]:
    """Target, model and engine, as far as the key has them."""
    return tuple(part for part in (*key[:2], key.engine and f"engine {key.engine}") if part)


def engine_url(key: EngineKey) -> str | None:
    """The page of an engine; None if the key is that of a whole target."""
    if not (key.model_name or key.engine):
        return None
    return f"{ENGINE_PATH}?{urlencode(key._asdict())}"


def element_id(*parts: str) -> str:
    """A unique element id from names that may hold any character."""
    return "-".join(re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}", part) for part in parts)
