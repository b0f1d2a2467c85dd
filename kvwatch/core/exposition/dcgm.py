"""Reads the GPUs on a DCGM exporter's page. The only file that spells DCGM's names.

Families and units follow NVIDIA's dcgm-exporter and its default counters (`etc/*.csv` there). The defaults leave out
SM activity; without it the activity is only an upper bound. The labels are ``gpu``, ``UUID``, ``modelName``;
``GPU_I_ID`` and ``GPU_I_PROFILE`` for a MIG instance; ``namespace``, ``pod`` and ``container`` in Kubernetes. An
instance has its GPU's UUID. A time-sliced GPU appears once per container.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from kvwatch.core.exposition.parser import Exposition, ExpositionError, PageReader
from kvwatch.core.model.gpu import MAX_GPUS, Gpu, GpuReading, distinct_gpus
from kvwatch.core.model.outcome import Failure

SOURCE = "dcgm"
_MIB = float(1 << 20)
_BLANK_FROM = 2_147_483_632.0
"""Numbers from here on are DCGM's "blank" (not supported, not found, no permission): as 32-bit integer, 64-bit
integer (about 9.2e18) or double (1.4e14)."""
_MAX_RATIO = 1.05
"""Sampling can push a ratio slightly above 1: up to here it counts as 1, above as invalid."""
_MAX_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class _Field:
    """A family, the field of `Gpu` that it fills, and its scale. The first family with a value wins."""

    family: str
    fills: str
    scale: float


_FIELDS = (
    _Field("DCGM_FI_PROF_SM_ACTIVE", "sm_active", 1.0),
    _Field("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active", 1.0),
    _Field("DCGM_FI_DEV_GPU_UTIL", "utilization", 0.01),
    _Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "utilization", 1.0),  # the same, also for MIG instances
    _Field("DCGM_FI_DEV_FB_USED", "memory_used_bytes", _MIB),
    _Field("DCGM_FI_DEV_FB_FREE", "memory_free_bytes", _MIB),
)
_FAMILIES = frozenset(row.family for row in _FIELDS)


def page_reader() -> PageReader:
    """A reader for the pages of one exporter."""
    return PageReader(
        lambda name: name in _FAMILIES, lambda text: any(name.startswith(text) for name in _FAMILIES)
    )


def read_gpus(pages: PageReader, body: bytes, *, interval_s: float, openmetrics: bool = False) -> GpuReading:
    """The GPUs on a page; without GPUs and with the reason if the page can't be read."""
    try:
        page = pages.read(body, openmetrics=openmetrics)
    except ExpositionError as bad:
        why = (
            "the server answers, but not as a DCGM exporter: check gpu_url"
            if bad.kind is Failure.NOT_VLLM
            else str(bad)
        )
        return GpuReading(source=SOURCE, reason=why, interval_s=interval_s)
    gpus = gpus_of(page)
    why = "" if gpus else "the DCGM exporter's page has no GPU"
    return GpuReading(gpus, SOURCE, why, interval_s)


def gpus_of(page: Exposition) -> tuple[Gpu, ...]:
    """The GPUs and MIG instances of a page."""
    found: dict[tuple[str, str, str], _GpuBuilder] = {}
    for row in _FIELDS:
        for series, value in zip(page.series, page.values, strict=True):
            if series.name != row.family or series in page.conflicts:
                continue
            labels = dict(series.labels)
            key = _key(labels)
            if key is None or (key not in found and len(found) >= MAX_GPUS):
                continue
            gpu = found.setdefault(key, _GpuBuilder())
            gpu.add_labels(labels)
            number = _number(row, value)
            if number is not None:
                gpu.numbers.setdefault(row.fills, number)
    return distinct_gpus(one.gpu(*key) for key, one in found.items())


@dataclass(slots=True)
class _GpuBuilder:
    """Collects the numbers and labels of one GPU."""

    numbers: dict[str, float] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    profile: str = ""
    owners: dict[str, None] = field(default_factory=dict)

    def add_labels(self, labels: dict[str, str]) -> None:
        if name := labels.get("modelName"):
            self.names[name[:_MAX_CHARACTERS]] = None
        self.profile = self.profile or labels.get("GPU_I_PROFILE", "")[:_MAX_CHARACTERS]
        if pod := labels.get("pod"):
            where = (labels.get("namespace", ""), pod, labels.get("container", ""))
            self.owners["/".join(where)[: 3 * _MAX_CHARACTERS]] = None

    def gpu(self, uuid: str, index: str, part: str) -> Gpu:
        name = next(iter(self.names), "")
        return Gpu(
            label=f"{index}/{part}" if part else index,
            uuid=uuid,
            name=f"{name} MIG {self.profile}".strip() if part else name,
            owners=tuple(self.owners),
            **self.numbers,
        )


def _key(labels: dict[str, str]) -> tuple[str, str, str] | None:
    """The GPU of a sample: UUID, index, and the MIG instance, if any."""
    index, uuid = labels.get("gpu", ""), labels.get("UUID", "")
    if not (index or uuid):
        return None
    return (
        uuid[:_MAX_CHARACTERS],
        (index or uuid)[:_MAX_CHARACTERS],
        labels.get("GPU_I_ID", "")[:_MAX_CHARACTERS],
    )


def _number(row: _Field, value: float) -> float | None:
    """A value in the units of `Gpu`; None if it is blank or invalid."""
    if not isfinite(value) or value < 0 or value >= _BLANK_FROM:
        return None
    scaled = value * row.scale
    if row.scale == _MIB:
        return scaled
    return min(scaled, 1.0) if scaled <= _MAX_RATIO else None
