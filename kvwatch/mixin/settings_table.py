"""The README's table of settings."""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.mixin.markdown_tables import table
from kvwatch.settings import Settings, TargetSettings
from kvwatch.settings.settings_model import choices
from kvwatch.settings.sources import PREFIX, SECRET, flag, key


def settings() -> str:
    """Every setting by flag (secrets have none) and environment variable, with its default, and a target's fields."""
    rows = [
        [
            "" if name in SECRET else f"`{flag(name)}`",
            f"`{PREFIX}{key(name).upper()}`",
            _default(field.default),
            (field.description or "") + _choices(choices(field)),
        ]
        for name, field in Settings.model_fields.items()
    ]
    targets = [
        [f"`{name}`", _default(field.default), field.description or ""]
        for name, field in TargetSettings.model_fields.items()
    ]
    return "\n\n".join(
        [
            table(["flag", "environment", "default", "meaning"], rows),
            "A target, in the file under `[[targets]]` or as JSON:",
            table(["key", "default", "meaning"], targets),
        ]
    )


def _choices(words: Sequence[str]) -> str:
    return f": {', '.join(f'`{word}`' for word in words)}" if words else ""


def _default(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return ""
    if isinstance(value, list):
        return ", ".join(_default(one) for one in value)
    if isinstance(value, TargetSettings):
        return f"`{value.url}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
