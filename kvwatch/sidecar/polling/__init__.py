"""Reads the watched servers: scrapes, GPUs, logs, and the pace of it."""
