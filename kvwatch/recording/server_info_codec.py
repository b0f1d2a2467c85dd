"""What other endpoints of a server said, in the lines of a recording: read with forgiveness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.core.model.server_info import ServerInfo

_LONGEST, _MOST_MODELS, _MOST_TOKENS = 200, 1000, 10**9


def as_fields(facts: ServerInfo) -> dict[str, Any]:
    """The fields of a line; none for facts of which nothing is known."""
    known = {"version": facts.version, "max_model_len": facts.max_model_len and dict(facts.max_model_len)}
    said = {name: value for name, value in known.items() if value}
    return {"facts": said} if said else {}


def of_fields(fields: Mapping[str, Any]) -> ServerInfo | None:
    """The facts in a line; None if there are none that can be understood."""
    said = fields.get("facts")
    if not isinstance(said, dict):
        return None
    version, lengths = said.get("version"), said.get("max_model_len")
    found = ServerInfo(
        version=version[:_LONGEST] if isinstance(version, str) and version else None,
        max_model_len=_lengths(lengths) if isinstance(lengths, dict) else None,
    )
    return found if found != ServerInfo() else None


def _lengths(said: Mapping[str, Any]) -> dict[str, int] | None:
    found = {
        name[:_LONGEST]: length
        for name, length in list(said.items())[:_MOST_MODELS]
        if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= _MOST_TOKENS
    }
    return found or None
