"""The judgement: pure functions from scraped bytes to findings.

Nothing here reads a clock, a file, the environment or the network, and nothing logs. Time is always an argument.
The one entry point is :func:`kvwatch.core.judgement.pipeline.advance`.
"""
