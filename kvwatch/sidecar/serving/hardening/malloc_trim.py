"""Memory that was needed once, given back to the machine.

The allocator of C keeps what was freed: it grows by the largest pages that ever came, and by the threads that judged
them, and a limit on a container counts that. Where it can be told to give back (glibc's ``malloc_trim``), it is,
after a page that was refused for its size; a good one of that size comes again at once.
"""

from __future__ import annotations

import contextlib
import gc


def trim_malloc() -> None:
    """Gives back what is free; takes some hundredths of a second, in which others may run."""
    import ctypes  # noqa: PLC0415 - most never need it

    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another allocator
        ctypes.CDLL(None).malloc_trim(0)
