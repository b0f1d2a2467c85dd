"""Which tests run in which process, where several run them (`make test`).

Those of one file share what they start, so a file is one process's. All that go by the clock, most of which wait for
real processes, are one process's too: beside them runs what only reckons, and never another that is in a hurry.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names the group of each test, of which `--dist=loadgroup` makes use."""
    for item in items:
        by_the_clock = item.get_closest_marker("clock") is not None
        item.add_marker(pytest.mark.xdist_group("clock" if by_the_clock else str(item.path)))
