"""Rows of a table by name; the error for a missing name says where to add it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar

T = TypeVar("T")


class NamedRows(dict[str, T]):
    """A dict of rows. A look-up of a missing name raises `LookupError` with `remedy`."""

    def __init__(self, rows: Mapping[str, T], remedy: str) -> None:
        super().__init__(rows)
        self._remedy = remedy

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(f"{name!r} is not in the table: {self._remedy}")
