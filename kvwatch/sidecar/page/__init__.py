"""The page at ``/``: findings, engines and events for people without a Grafana at hand.

Theory of operation
    The server renders the whole page, and it is complete without a script: findings, numbers, the regime ribbon, and
    each chart as a sentence and as a table. With a script, the page fetches itself every two seconds and patches what
    changed (`static/live.js`), so all words come from one place. `static/charts.js` draws the charts from
    ``/api/v1/history``.

    The page polls instead of holding a stream open. A stream would occupy one of the few connections that kvwatch
    accepts, would cost as much in a hidden tab as in a visible one, and breaks with `kubectl port-forward`.

Rules
    Python prepares plain data (`view_data`, `engine_data`, `chart_data`). Markup lives in ``templates/`` only.
    Templates escape every value. A filter that returns `Markup` must escape its input first.
    The browser loads and runs files from ``/static/`` only (`assets.POLICY`).
"""
