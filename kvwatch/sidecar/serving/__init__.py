"""Serves what was judged: /metrics, the JSON API and the page over HTTP."""
