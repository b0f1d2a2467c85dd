"""The page at ``/``: what a person wants to see first, for who has no Grafana at hand.

Theory of operation
    The server writes the whole page, and it is complete without a script: findings, numbers, the regimes as a ribbon,
    each chart in words and as a table. With one, the page asks for itself again every two seconds and takes over
    what changed (`static/live.js`), so that there is one place where things are put in words, and draws the charts
    from ``/api/v1/history`` (`static/charts.js`).

    It polls, and does not hold a stream open: an answer that never ends would take one of the few connections that
    kvwatch holds, a hidden tab would cost as much as one that is looked at, and after a connection through
    `kubectl port-forward` broke there would be nothing to do but ask again anyway.

    Whatever a server or a setting says is escaped by `words.e` where it becomes markup, and the browser is told to
    run and load nothing but `static/`.
"""
