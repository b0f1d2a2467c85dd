"""Why something can't be planned."""

from __future__ import annotations


class PlanError(Exception):
    """One line: what is wrong, where, and what to do."""


class RefusedError(PlanError):
    """A model whose cache is not known here: a wrong number would be worse than none."""
