"""Logs of real servers, and lines in vLLM's words with numbers of their own."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvwatch.logs import Explanation, LogReader

CAPTURES = Path(__file__).resolve().parents[1] / "captures"

Explain = Callable[..., Explanation]


@pytest.fixture
def explain() -> Explain:
    """Explains lines, or the bytes of a log, in pieces of a size that cuts lines in two."""

    def run(log: Sequence[str] | bytes, piece: int = 700) -> Explanation:
        data = log if isinstance(log, bytes) else "".join(f"{line}\n" for line in log).encode()
        reader = LogReader()
        for start in range(0, len(data), piece):
            reader.feed(data[start : start + piece])
        return reader.explain()

    return run


@pytest.fixture
def real() -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        return (CAPTURES / f"vllm-{name}.log").read_bytes()

    return read
