"""Polls the watched servers: pages, GPUs, logs, and when the next poll is due."""
