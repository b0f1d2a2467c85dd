"""What other endpoints of a server said, in the lines of a recording: read with forgiveness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwatch.core.model.server_info import ServerInfo, server_info_from


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
    lengths = said.get("max_model_len")
    found = server_info_from(said.get("version"), lengths.items() if isinstance(lengths, dict) else ())
    return found if found != ServerInfo() else None
