"""Reads a log of a vLLM server: why it did not start, and what its statistics lines show.

::

    bytes ──► lines ──► StartRecord (facts, options, errors, statistics of one start) ──► verdict ──► Explanation
                                                                       └──► Snapshots ──► core advance ──► symptoms

Only lines with a word of the tables are decoded (`lines`), so a log of any size takes bounded memory. vLLM's
wordings are in three tables: `log_patterns`, `causes` and `stages`.
"""

from kvwatch.logs.explanation import Explanation
from kvwatch.logs.log_reader import LogReader

__all__ = ["Explanation", "LogReader"]
