"""Serves /metrics, the JSON API and the page over HTTP."""
