"""Reads a log of a vLLM server: why it did not start, and what its statistics lines show.

::

    bytes ──► lines ──► Story (one start: facts, flags, causes, statistics) ──► verdict ──► Explanation
                                                                    └──► Snapshots ──► core advance ──► symptoms

Only what a table asks for is looked at (`lines`), so a log of any size takes bounded memory. What vLLM says in
which words is in `facts` and `causes`; everything else follows from those two tables.
"""

from kvwatch.logs.explanation import Explanation, LogReader

__all__ = ["Explanation", "LogReader"]
