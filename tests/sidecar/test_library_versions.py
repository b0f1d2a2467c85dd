"""kvwatch uses internals of a few libraries: another version must be looked at before it is used."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from kvwatch.sidecar.serving.hardening import WRITTEN_FOR


@pytest.mark.parametrize("name", WRITTEN_FOR)
def test_the_installed_version_is_one_that_kvwatch_was_written_for(name: str) -> None:
    oldest, newest = WRITTEN_FOR[name]
    major, minor = map(int, version(name).split(".")[:2])
    assert oldest <= (major, minor) <= newest, (
        f"{name} {version(name)} is installed, but kvwatch uses internals of {name}"
        f" {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}: run tests/sidecar/test_service.py and"
        " tests/e2e with it, then extend WRITTEN_FOR in kvwatch/sidecar/serving/hardening/__init__.py"
    )
