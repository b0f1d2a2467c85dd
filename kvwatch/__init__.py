"""Watches a vLLM server's metrics and says what is wrong with its KV cache."""

__version__ = "0.2.0"
