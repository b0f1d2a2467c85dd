"""What each cause means, and what to do about it in which order: sentences made of the facts of the log.

Where vLLM's own hint is wrong for the case (a pinned pool that `--gpu-memory-utilization` does not change, a card
that is full before the start) the advice says so.
"""
