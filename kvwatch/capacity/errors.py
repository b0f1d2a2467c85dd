"""What can't be planned, and why."""

from __future__ import annotations


class PlanError(Exception):
    """A line that says what is wrong, where, and what to do."""


class RefusedError(PlanError):
    """A model that can't be reckoned: a wrong number would be worse than none."""
