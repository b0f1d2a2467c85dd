"""What the HTTP interface answers with, as its OpenAPI description says it.

The words are those of `kvwatch.core.export.report`; what that adds goes through.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

DESCRIPTION = """\
kvwatch scrapes vLLM servers, tells when their KV cache is in trouble, and says why and what to do.

* `/api/v1/findings` is where to begin: what is wrong now, most urgent first, each with evidence, causes and actions.
* `/api/v1/state` is everything that is known now; `/api/v1/events` is what happened lately; `/api/v1/history` is
  the last minutes as numbers, one a scrape.
* `/metrics` is for Prometheus.

All is read-only. Names that end in `_seconds` are time spans in seconds; `at` and names that end in `_at` are unix
time in seconds. A number that is not known is null or absent, with the reason beside it, and never zero: of a server
that does not answer, or an engine that is not on its newest page, no number is told at all. Further fields may be
added; those that are there stay.

Every error is JSON with one message, `{"error": "..."}`. If kvwatch has an API token, send it as
`Authorization: Bearer TOKEN`, or by HTTP Basic as the password of any user; `/healthz` and `/readyz` need none.
"""
"""Of the whole interface, for who uses it (Markdown)."""


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Failed(BaseModel):
    """Why a request was not answered."""

    error: str


class Identity(_Open):
    """Whose it is. What concerns a whole server has no model and no engine."""

    target: str
    model_name: str | None = None
    engine: str | None = None


class FindingSchema(Identity):
    """A symptom that fires, with all that a person needs to act."""

    symptom: str
    title: str
    severity: str
    firing_seconds: float
    since_at: float | None
    current: bool = Field(
        description="whether its condition holds now; false while that can't be told any more, as when the server"
        " is not scraped, and while it is clear but kept a little in case it comes back"
    )
    reason: str | None = Field(description="why it is not current, as a sentence; null while it is")
    evidence: dict[str, Any] = Field(
        description="the numbers that were judged, and the thresholds; not those of now unless it is current"
    )
    meaning: str
    causes: list[str] = Field(description="most likely first")
    actions: list[str] = Field(description="in the order to try")
    explained_by: list[str] = Field(description="firing symptoms that account for this one: act on those")


class EventSchema(Identity):
    """Something that happened once."""

    at: float
    event: str = Field(
        description="restart (vLLM is a new process), engine_appeared, engine_vanished, or several_servers (they"
        " answer in turn behind one address, so that no increase can be told: give each its own target)"
    )
    detail: dict[str, Any]


class TransitionSchema(Identity):
    """A symptom that went from one state to another; states are inactive, pending, firing, unknown."""

    at: float
    t: float = Field(description="seconds since the oldest transition in the list")
    symptom: str
    from_: str = Field(alias="from")
    to: str
    evidence: dict[str, Any]


class LifecycleSchema(_Open):
    """Where a symptom is; a `reason` says why it can't be told, while it can't."""

    state: str = Field(description="inactive, pending, firing or unknown")
    since_at: float | None = Field(description="unix seconds since when; null before the first judgement")
    evidence: dict[str, Any] = Field(description="the numbers that were judged last")


class Engine(Identity):
    """One engine: signals under kvwatch's names, what is missing and why, derived numbers.

    They are those of now: of an engine that is not scraped at present there are none, and the reasons say for
    how long it has not been.
    """

    generation: str = Field(description="v0 or v1")
    signals: dict[str, float | None] = Field(description="empty while the engine is not scraped")
    missing: dict[str, str] = Field(description="reason by signal")
    derived: dict[str, float | None] = Field(description="null where unknown")
    unknown: dict[str, str] = Field(description="reason by derived number")
    config: dict[str, Any] = Field(description="what vLLM last said of its cache")
    regime: str
    regime_seconds: dict[str, float]
    symptoms: dict[str, LifecycleSchema]


class Polling(BaseModel):
    """How the scraping goes."""

    polls: int
    missed_ticks: int
    unexpected_errors: int
    interval_seconds: float | None = Field(description="spacing kept at present")
    duration_seconds: float | None = Field(description="of the newest scrape")
    narrowed: bool | None = Field(description="whether the newest scrape asked only for what is read")
    age_seconds: float | None = Field(description="since the newest page that could be read")


class GpuSchema(_Open):
    """One GPU of a server, or one MIG instance. Ratios are 0 to 1; null is what its source does not say."""

    gpu: str = Field(description="its index, with that of the part behind it for a MIG instance (0/7)")
    uuid: str
    name: str
    source: str = Field(description="dcgm or nvml")
    sm_active_ratio: float | None
    dram_active_ratio: float | None
    utilization_ratio: float | None = Field(description="1 proves nothing, a low value does")
    memory_used_bytes: float | None
    memory_free_bytes: float | None


class Target(_Open):
    """One vLLM server."""

    target: str
    up: bool | None = Field(description="null before the first scrape")
    failure: dict[str, str] | None
    scrapes: dict[str, int] = Field(description="by outcome")
    restarts: int
    polling: Polling
    unknown_families: list[str] = Field(description="vLLM's metric families that kvwatch has never heard of")
    series_left_out: int = Field(
        description="series that are not read because there are too many engines or label values, or too long ones"
    )
    server: dict[str, float | None] = Field(
        description="signals of the whole server; empty while it is not scraped"
    )
    gpus: list[GpuSchema] = Field(description="those that are read at present")
    gpus_missing: str | None = Field(description="why no GPU is known; null if one is")
    engines: list[Engine]
    symptoms: dict[str, LifecycleSchema]
    findings: list[FindingSchema]
    events: list[EventSchema]


class StateAnswer(BaseModel):
    """Everything kvwatch knows now."""

    version: str
    at: float
    targets: list[Target]


class FindingsAnswer(BaseModel):
    """What fires now, causes before effects, then by severity."""

    at: float
    findings: list[FindingSchema]


class EventsAnswer(BaseModel):
    """What happened lately, oldest first."""

    at: float
    events: list[EventSchema]
    transitions: list[TransitionSchema]


class EngineHistory(Identity):
    """The samples of one engine, one list a column, all of the same length, oldest first."""

    columns: dict[str, list[float | str | None]]
    latencies: dict[str, list[float | None]] = Field(
        description="quantiles of the time to first token over the minute before each `at`, seconds; as far back as"
        " its histograms are kept (five minutes, and those before a restart of vLLM), null where too few requests had"
        " their first token"
    )


class HistoryAnswer(BaseModel):
    """Samples at full resolution. Counters are increases since kvwatch first saw the engine, resets taken out: they
    stand still across a restart of vLLM (`/api/v1/events` tells when one was), as across a gap."""

    at: float
    seconds: float
    units: dict[str, str] = Field(description="unit by column")
    engines: list[EngineHistory]


class BadScrape(BaseModel):
    """A scrape that gave nothing, and the beginning of what came."""

    target: str
    at: float
    kind: str
    detail: str
    excerpt: str


class FailuresAnswer(BaseModel):
    """The latest scrapes that gave nothing, oldest first; at most 20 of each target."""

    failures: list[BadScrape]


class Health(BaseModel):
    status: str
