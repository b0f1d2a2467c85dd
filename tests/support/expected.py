"""Expected results that are files: compared with what is found, or written anew on demand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

#: Set to 1 to write the expected files from what is found; the run then fails, so that nobody forgets to look.
FLAG = "KVWATCH_REGENERATE"


def matches(path: Path, found: Any) -> None:
    """Fails unless `found`, as JSON, is what the file holds; a list has one entry a line."""
    text = written(found)
    if os.environ.get(FLAG) == "1":
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            pytest.fail(f"{path.name} was written anew: look at the difference, then run without {FLAG}")
        return
    assert path.exists(), f"{path.name} is missing: run once with {FLAG}=1 and look at it"
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(text), f"made anew by {FLAG}=1"


def written(found: Any) -> str:
    """JSON with one line for each entry at the top, so that a difference can be read."""
    if isinstance(found, list):
        return "[\n" + ",\n".join(_line(entry) for entry in found) + "\n]\n"
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_line(value)}" for key, value in found.items()) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def number(value: float | None, digits: int = 6) -> float | None:
    """A number as short as it can be written."""
    if value is None:
        return None
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded
