"""What several end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.neighbours import Neighbourhood


@pytest.fixture(scope="module")
def town() -> Iterator[Neighbourhood]:
    """Servers, good ones until they are told to be bad."""
    with Neighbourhood().open() as town:
        yield town
