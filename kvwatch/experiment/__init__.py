"""Recorded runs against each other: what one changed option did, and how sure that is.

::

    recording ─► Run ─► Estimates ─┐
    recording ─► Run ─► Estimates ─┴► Comparison ─► text, Markdown, HTML, data

`run` replays a recording through the same `advance` as live and collects what each step of it gained (`series`).
Every one of the `measures` is worked out of sums of such steps (`totals`): of all of them for its value, of resampled
ones for its error (`bootstrap`, `estimate`). `verdict` says what a difference means, `configuration` what changed
between the servers, `comparability` what else did, `soundness` what to know of one run. `report` has it as data,
`words` in words; `text` and `html` lay them out.
"""

from kvwatch.experiment.comparison import MARGIN, Comparison, compare
from kvwatch.experiment.comparison_data import as_data
from kvwatch.experiment.comparison_text import as_markdown, as_text
from kvwatch.experiment.measured_run import MeasuredRun, run_of

__all__ = ["MARGIN", "Comparison", "MeasuredRun", "as_data", "as_markdown", "as_text", "compare", "run_of"]
