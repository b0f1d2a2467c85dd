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
from kvwatch.experiment.report import as_data
from kvwatch.experiment.run import Run, run_of
from kvwatch.experiment.text import as_markdown, as_text

__all__ = ["MARGIN", "Comparison", "Run", "as_data", "as_markdown", "as_text", "compare", "run_of"]
