"""The judgement: pure functions from scraped bytes to findings.

Nothing in this package reads a clock, a file, the environment or the network, and nothing logs.
Time is always an argument. The one entrance is :func:`kvwatch.core.judgement.pipeline.advance`.
"""
