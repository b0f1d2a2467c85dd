"""The README's tables of alerts that are no symptom's, and of what an installation may change."""

from __future__ import annotations

from kvwatch.mixin.alerts import meta
from kvwatch.mixin.markdown_tables import table
from kvwatch.mixin.render_options import Options


def alerts() -> str:
    """The alerts about kvwatch itself and the objective."""
    rows = [[f"`{one.name}`", one.severity.value, one.summary] for one in meta(Options())]
    return table(["alert", "severity", "what"], rows)


def options() -> str:
    """Every key of the file for `kvwatch render --config`."""
    rows = [
        [
            f"`{name}`",
            f"`{field.default}`" if isinstance(field.default, str) and field.default else "",
            field.description or "",
        ]
        for name, field in Options.model_fields.items()
    ]
    return table(["key", "default", "meaning"], rows)
