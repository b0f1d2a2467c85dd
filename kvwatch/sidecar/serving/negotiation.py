"""What a client accepts, from headers that may hold anything. Nothing here raises; nonsense is passed over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NUMBER = re.compile(r"[01](\.[0-9]{0,3})?")
_VERSIONS = frozenset({"", "1.0", "1.0.0"})
"""Of OpenMetrics; empty is who names none."""


def wants_openmetrics(accept: str) -> bool:
    """Whether to answer in OpenMetrics 1.0: asked for by name, and no less than plain text is."""
    wanted = plain = 0.0
    for name, parameters in _items(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "") in _VERSIONS:
            wanted = max(wanted, _quality(parameters))
        elif name == "text/plain":
            plain = max(plain, _quality(parameters))
    return wanted > 0 and wanted >= plain


def takes_gzip(accept_encodings: Iterable[str]) -> bool:
    """Whether a body may be compressed with gzip: named, and not with a quality of zero."""
    named = [
        _quality(parameters) for name, parameters in _items(",".join(accept_encodings)) if name == "gzip"
    ]
    return bool(named) and min(named) > 0


def _items(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The items of a header, each a name and its parameters, in lower case."""
    for item in header.lower().split(","):
        name, *rest = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in rest)
        yield name, {key.strip(): value.strip().strip('"') for key, _, value in pairs}


def _quality(parameters: dict[str, str]) -> float:
    """From 0, not at all, to 1, as without one; what is no quality counts as none given."""
    given = parameters.get("q", "1")
    return min(float(given), 1.0) if _NUMBER.fullmatch(given) else 1.0
