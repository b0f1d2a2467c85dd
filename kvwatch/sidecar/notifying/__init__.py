"""Sends alerts to Alertmanagers directly."""
