"""The README's table of settings."""

from __future__ import annotations

from kvwatch.mixin.tables import table
from kvwatch.settings import Settings, TargetSettings
from kvwatch.settings.sources import PREFIX, flag, key


def settings() -> str:
    """Every setting by flag, environment variable and key, with its default, and the fields of a target."""
    rows = [
        [
            f"`{flag(name)}`",
            f"`{PREFIX}{key(name).upper()}`",
            _default(field.default),
            field.description or "",
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


def _default(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return ""
    if isinstance(value, list):
        return ", ".join(_default(one) for one in value)
    if isinstance(value, TargetSettings):
        return f"`{value.url}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
