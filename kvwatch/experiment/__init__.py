"""Comparison of recorded runs: what one changed option did, and how certain that is.

::

    recording ─► MeasuredRun ─► estimates ─┐
    recording ─► MeasuredRun ─► estimates ─┴► Comparison ─► text, Markdown, HTML, JSON

`measured_run` replays a recording and collects the increments of each step (`series`). Each of the `measures` is
computed from sums of steps: of all steps for its value, of resampled ones for its error (`bootstrap`, `estimate`).
`differences` gives the verdicts, `configuration` the changed options, `cautions` what else differed.
`comparison_rows` has the words; `comparison_text`, `comparison_html` and `comparison_data` lay them out.

Requires numpy and scipy, which the extra ``compare`` installs.
"""
