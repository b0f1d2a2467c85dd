"""The names under which vLLM exposes each signal. The only place that spells their prefix."""
