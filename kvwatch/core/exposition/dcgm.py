"""A DCGM exporter's page to a reading of GPUs. The only file that spells its names.

Families and units are those of NVIDIA's dcgm-exporter and its default lists of counters (`etc/*.csv` there), which
leave out SM activity: whoever wants more than an upper bound adds it. The labels are ``gpu``, ``UUID``,
``modelName``; ``GPU_I_ID`` and ``GPU_I_PROFILE`` for a MIG instance; ``namespace``, ``pod`` and ``container`` where
Kubernetes says who holds it. An instance carries its GPU's UUID. Time-sliced GPUs come once for every holder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from kvwatch.core.exposition.parser import BadExposition, Exposition, PageReader
from kvwatch.core.model.gpu import MOST_GPUS, Gpu, GpuReading, distinct_gpus
from kvwatch.core.model.outcome import Failure

SOURCE = "dcgm"
_MIB = float(1 << 20)
_BLANK_FROM = 2_147_483_632.0
"""From here on a number is DCGM's "blank" (not supported, not found, no permission): of 32 bits, of 64 bits (some
9.2e18) or of a double (1.4e14)."""
_OVER = 1.05
"""A ratio may be this much by the way it is sampled; it is 1 then. What is beyond is no ratio."""
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class _Field:
    """A family, what it is of a `Gpu`, and what to multiply it by. The first that says something counts."""

    family: str
    of: str
    scale: float


_FIELDS = (
    _Field("DCGM_FI_PROF_SM_ACTIVE", "sm_active", 1.0),
    _Field("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active", 1.0),
    _Field("DCGM_FI_DEV_GPU_UTIL", "utilization", 0.01),
    _Field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "utilization", 1.0),  # the same, and of MIG instances, too
    _Field("DCGM_FI_DEV_FB_USED", "memory_used_bytes", _MIB),
    _Field("DCGM_FI_DEV_FB_FREE", "memory_free_bytes", _MIB),
)
_FAMILIES = frozenset(row.family for row in _FIELDS)


def reader() -> PageReader:
    """Reads pages of one exporter."""
    return PageReader(
        lambda name: name in _FAMILIES, lambda text: any(name.startswith(text) for name in _FAMILIES)
    )


def reading(pages: PageReader, body: bytes, *, interval_s: float, openmetrics: bool = False) -> GpuReading:
    """What a page says of the GPUs on it; a reading without any, with the reason, if it can't be read."""
    try:
        page = pages.read(body, openmetrics=openmetrics)
    except BadExposition as bad:
        why = "it answers, but not as a DCGM exporter" if bad.kind is Failure.NOT_VLLM else str(bad)
        return GpuReading(source=SOURCE, reason=why, interval_s=interval_s)
    gpus = gpus_of(page)
    why = "" if gpus else "there is no GPU on the page of the DCGM exporter"
    return GpuReading(gpus, SOURCE, why, interval_s)


def gpus_of(page: Exposition) -> tuple[Gpu, ...]:
    """The GPUs and MIG instances of a page."""
    found: dict[tuple[str, str, str], _Found] = {}
    for row in _FIELDS:
        for series, value in zip(page.series, page.values, strict=True):
            if series.name != row.family or series in page.conflicts:
                continue
            labels = dict(series.labels)
            key = _key(labels)
            if key is None or (key not in found and len(found) >= MOST_GPUS):
                continue
            gpu = found.setdefault(key, _Found())
            gpu.note(labels)
            number = _number(row, value)
            if number is not None:
                gpu.numbers.setdefault(row.of, number)
    return distinct_gpus(one.gpu(*key) for key, one in found.items())


@dataclass(slots=True)
class _Found:
    """What was found of one GPU so far."""

    numbers: dict[str, float] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    profile: str = ""
    owners: dict[str, None] = field(default_factory=dict)

    def note(self, labels: dict[str, str]) -> None:
        if name := labels.get("modelName"):
            self.names[name[:_LONGEST]] = None
        self.profile = self.profile or labels.get("GPU_I_PROFILE", "")[:_LONGEST]
        if pod := labels.get("pod"):
            where = (labels.get("namespace", ""), pod, labels.get("container", ""))
            self.owners["/".join(where)[: 3 * _LONGEST]] = None

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
    """Whose a sample is: UUID, index, and the part if it is that of a divided GPU."""
    index, uuid = labels.get("gpu", ""), labels.get("UUID", "")
    if not (index or uuid):
        return None
    return uuid[:_LONGEST], (index or uuid)[:_LONGEST], labels.get("GPU_I_ID", "")[:_LONGEST]


def _number(row: _Field, value: float) -> float | None:
    """A value in the units of a `Gpu`; None if it stands for no value, or can't be one."""
    if not isfinite(value) or value < 0 or value >= _BLANK_FROM:
        return None
    scaled = value * row.scale
    if row.scale == _MIB:
        return scaled
    return min(scaled, 1.0) if scaled <= _OVER else None
