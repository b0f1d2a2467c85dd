"""Numbers and texts as the templates show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from kvwatch.sidecar.page.links import where
from kvwatch.text.evidence import format_evidence
from kvwatch.text.numbers import NOTHING, format_duration

_OPTION = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")


def number(value: float | None, digits: int = 0) -> str:
    """A number with a separator between thousands; a dash for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share, 0 to 1, in whole percent; one digit more below 10 %."""
    if share is None:
        return NOTHING
    if 0 < share < 0.0005:
        return "under 0.1 %"
    return f"{100 * share:.{1 if 0 < share < 0.0995 else 0}f} %"


def age(seconds: float) -> str:
    """A time that passed, in whole seconds."""
    return format_duration(round(max(seconds, 0.0)))


def clock_time(wall: float) -> str:
    """Unix seconds as a time of day in UTC, as in the logs of vLLM."""
    return f"{datetime.fromtimestamp(wall, UTC):%H:%M:%S} UTC"


def iso_time(wall: float) -> str:
    """Unix seconds for the attribute of a `<time>`."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds")


def keep_options(text: str) -> Markup:
    """`text` with the options of vLLM unbroken at their hyphens, because people copy them."""
    escaped = str(escape(text))  # as str: re.sub on Markup would escape the replacement
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', escaped))  # noqa: S704


FILTERS: Mapping[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (number, percent, age, clock_time, iso_time, keep_options, where, format_evidence)
} | {"duration": format_duration}
