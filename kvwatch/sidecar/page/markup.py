"""Numbers, times and texts as markup. Every text from elsewhere passes `e`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from html import escape
from urllib.parse import urlencode

from kvwatch.core.model.snapshot import EngineKey
from kvwatch.text.numbers import NOTHING, format_duration

#: An option of vLLM, which is copied from the page and so never broken at its hyphens.
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")
ENGINE = "/engine"
"""Where the page of one engine is."""
_WHOLE = r'<span class="option">\g<0></span>'


def e(text: object) -> str:
    """A text as markup."""
    return escape(str(text), quote=True)


def sentence(text: object) -> str:
    """A text as markup, the options of vLLM in it kept whole."""
    return _OPTION.sub(_WHOLE, e(text))


def number(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def since(start: float, now: float) -> str:
    """The time from one monotonic moment to another, in words."""
    return format_duration(max(now - start, 0.0))


def moment(wall: float | None) -> str:
    """Unix seconds as a time of day, in UTC as the logs of servers have it."""
    if wall is None:
        return ""
    at = datetime.fromtimestamp(wall, UTC)
    return f'<time datetime="{at.isoformat(timespec="seconds")}">{at:%H:%M:%S} UTC</time>'


def place(key: EngineKey) -> str:
    """Whose it is: target, model and engine, as far as there are any."""
    return e(" / ".join(part for part in key if part))


def link(key: EngineKey, label: str, name: str = "", *, here: bool = False) -> str:
    """A link to an engine's own page, or to where it is told on this page (`here`); of what concerns a whole server,
    its text alone. `label` is the text, `name` what tells it from others of the same text; both are markup."""
    if not (key.model_name or key.engine):
        return label
    asked = urlencode({"target": key.target, "model_name": key.model_name, "engine": key.engine})
    to = f"#{ident('engine', *key)}" if here else e(f"{ENGINE}?{asked}")
    whose = f' aria-label="{name}"' if name else ""
    return f'<a href="{to}"{whose}>{label}</a>'


def ident(*parts: str) -> str:
    """An element's id of its own, made of names that may hold anything."""
    return "-".join(re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}", part) for part in parts)


def listed(tag: str, lines: Iterable[str], name: str = "") -> Iterator[str]:
    """A list under its title; nothing if it is empty."""
    items = "".join(f"<li>{sentence(line)}</li>" for line in lines)
    if items:
        yield f"<h4>{name}</h4>" if name else ""
        yield f"<{tag}>{items}</{tag}>"
