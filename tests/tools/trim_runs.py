"""Make the recorded runs of the tests of `kvwatch compare` from recordings of whole pages.

    python tests/tools/trim_runs.py RECORDING…

Written is ``tests/experiment/recordings/NAME.jsonl.gz`` for each, from the same bytes always the same: all lines,
their pages cut down to the families that kvwatch reads and without HELP lines.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.tools.trim_captures import Sample, read, strip, write  # noqa: E402 - after the path to it

RUNS = ROOT / "tests" / "experiment" / "recordings"


def cut_down(samples: list[Sample]) -> Iterator[Sample]:
    """The lines with stripped pages."""
    for sample in samples:
        if "body" not in sample:
            yield sample
            continue
        lines = strip(sample["body"]).splitlines(keepends=True)
        yield sample | {"body": "".join(line for line in lines if not line.startswith("# HELP"))}


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        target = RUNS / path.name
        print(target.relative_to(ROOT), write(target, cut_down(read(path))))


if __name__ == "__main__":
    main()
