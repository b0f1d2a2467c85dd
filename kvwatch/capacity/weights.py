"""The size of a model's weights, from its files."""

from __future__ import annotations

import json
from pathlib import Path

from kvwatch.capacity.errors import PlanError

_INDEX = "model.safetensors.index.json"
_MOST_BYTES = 64 << 20
"""An index is some MB; more is no index."""


def beside(config: Path) -> int | None:
    """Bytes of all weights in the folder of a config.json; None if there are none."""
    folder = config.parent
    if (folder / _INDEX).is_file():
        return of(folder / _INDEX)
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return sum(sizes) or None


def of(path: Path) -> int:
    """Bytes of all weights: of an index, of a .safetensors file, or of a folder that has either.

    Raises:
        PlanError: there are none, or the index can't be read.
    """
    if path.is_dir():
        found = beside(path / "config.json")
        if found is None:
            raise PlanError(f"--weights {path}: no {_INDEX} and no *.safetensors in this folder")
        return found
    try:
        if path.suffix == ".safetensors":
            return path.stat().st_size
        if path.stat().st_size > _MOST_BYTES:
            raise PlanError(f"--weights {path}: too large to be an index; give the folder of the model")
        data = json.loads(path.read_text(encoding="utf-8"))
        size = data["metadata"]["total_size"]
    except OSError as error:
        raise PlanError(f"--weights {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise PlanError(f"--weights {path}: no index of safetensors (metadata.total_size)") from None
    if isinstance(size, float):
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise PlanError(f"--weights {path}: metadata.total_size is no number of bytes")
    return size
