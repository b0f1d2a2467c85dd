"""KV memory before the server runs: from a model's config.json to tokens, blocks and requests at once, as vLLM 0.32
reckons them. Pure but for `weights` and `plot`, which read and write files."""
