"""The answers of the JSON API, for its OpenAPI description.

The fields come from `kvwatch.core.export.report`; fields that it adds pass through.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

DESCRIPTION = """\
kvwatch scrapes vLLM servers, detects problems of their KV cache, and shows causes and actions.

* `/api/v1/findings`: current problems, most urgent first, each with evidence, causes and actions. Start here.
* `/api/v1/state`: everything known now. `/api/v1/events`: recent events. `/api/v1/history`: the last minutes, one
  sample per scrape.
* `/metrics`: for Prometheus.

Everything is read-only. Names that end in `_seconds` are durations in seconds; `at` and names that end in `_at` are
unix seconds. An unknown number is null or absent, with the reason beside it, and never zero. A server that does not
answer, or an engine that is not on its newest page, has no numbers. New fields may be added; existing ones stay.

Every error is JSON with one message, `{"error": "..."}`. If kvwatch has an API token, send it as
`Authorization: Bearer TOKEN`, or as the password of any user (HTTP Basic). `/healthz` and `/readyz` need no token.
"""
"""Of the whole API, in Markdown."""


class _Named(BaseModel):
    """A model whose public name in the OpenAPI description is its own without the suffix "Schema"."""

    def __init_subclass__(cls, **options: Any) -> None:
        cls.__name__ = cls.__qualname__ = cls.__name__.removesuffix("Schema")
        super().__init_subclass__(**options)


class _Open(_Named):
    model_config = ConfigDict(extra="allow")


class Failed(BaseModel):
    """Why a request failed."""

    error: str


class Identity(_Open):
    """The target and engine concerned. Without model and engine it is the whole server."""

    target: str
    model_name: str | None = None
    engine: str | None = None


class ActionSchema(_Named):
    """One thing to do."""

    lever: str = Field(description="what is changed; stable")
    text: str
    option: str | None = Field(description="the option of vLLM; null for steps outside vLLM")
    value: float | str | None = Field(description="the amount, if there is one")
    restart: bool = Field(description="whether vLLM must be restarted")
    cost: str = Field(description="what it costs; empty if nothing")


class DoNotSchema(_Named):
    """One thing not to do."""

    lever: str
    text: str = Field(description='follows "do not"')


class FindingSchema(Identity):
    """A firing symptom, with everything needed to act."""

    symptom: str
    title: str
    severity: str
    firing_seconds: float
    since_at: float | None
    current: bool = Field(
        description="whether the condition holds now; false while it is unknown (for example, the server is not"
        " scraped), and while it is clear but may return"
    )
    reason: str | None = Field(description="why it is not current, as a sentence; null if it is")
    evidence: dict[str, Any] = Field(
        description="the numbers judged last, and the thresholds; up to date only if current"
    )
    meaning: str
    causes: list[str] = Field(description="most likely first")
    actions: list[ActionSchema] = Field(description="in the order to try: first those without a restart")
    do_not: list[DoNotSchema] = Field(description="plausible steps that would not help, or harm")
    explained_by: list[str] = Field(description="firing symptoms that cause this one: fix those first")


class EventSchema(Identity):
    """Something that happened once."""

    at: float
    event: str = Field(
        description="restart (vLLM is a new process), engine_appeared, engine_vanished, or several_servers (they"
        " answer in turn behind one address, so increases are unknown: give each its own target)"
    )
    detail: dict[str, Any]


class TransitionSchema(Identity):
    """A symptom's change of state; states are inactive, pending, firing, unknown."""

    at: float
    t: float = Field(description="seconds since the oldest transition in the list")
    symptom: str
    from_: str = Field(alias="from")
    to: str
    evidence: dict[str, Any]


class LifecycleSchema(_Open):
    """The state of a symptom; `reason` says why it is unknown, if it is."""

    state: str = Field(description="inactive, pending, firing or unknown")
    since_at: float | None = Field(description="unix seconds; null before the first judgement")
    evidence: dict[str, Any] = Field(description="the numbers judged last")


class Engine(Identity):
    """One engine: signals under kvwatch's names, missing signals with reasons, derived numbers.

    All are of now. An engine that is not scraped has none; the reasons say for how long.
    """

    generation: str = Field(description="v0 or v1")
    signals: dict[str, float | None] = Field(description="empty while the engine is not scraped")
    missing: dict[str, str] = Field(description="reason by signal")
    derived: dict[str, float | None] = Field(description="null if unknown")
    unknown: dict[str, str] = Field(description="reason by derived number")
    config: dict[str, Any] = Field(description="vLLM's newest cache settings")
    regime: str
    regime_seconds: dict[str, float]
    symptoms: dict[str, LifecycleSchema]


class Polling(BaseModel):
    """The state of polling."""

    polls: int
    missed_ticks: int
    unexpected_errors: int
    interval_seconds: float | None = Field(description="current polling interval")
    duration_seconds: float | None = Field(description="of the newest scrape")
    narrowed: bool | None = Field(description="whether the newest scrape fetched only what kvwatch reads")
    age_seconds: float | None = Field(description="since the newest readable page")


class GpuSchema(_Open):
    """One GPU of a server, or one MIG instance. Ratios are 0 to 1; null if its source does not know."""

    gpu: str = Field(description="its index, for a MIG instance with the instance's index (0/7)")
    uuid: str
    name: str
    source: str = Field(description="dcgm or nvml")
    sm_active_ratio: float | None
    dram_active_ratio: float | None
    utilization_ratio: float | None = Field(description="a low value shows an idle GPU; 1 proves nothing")
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
    unknown_families: list[str] = Field(description="vLLM's metric families that kvwatch does not know")
    series_left_out: int = Field(
        description="series not read, because engines or label values are too many or too long"
    )
    server: dict[str, float | None] = Field(
        description="signals of the whole server; empty while it is not scraped"
    )
    gpus: list[GpuSchema] = Field(description="the GPUs read now")
    gpus_missing: str | None = Field(description="why no GPU is known; null if one is")
    engines: list[Engine]
    symptoms: dict[str, LifecycleSchema]
    findings: list[FindingSchema]
    events: list[EventSchema]


class StateAnswer(BaseModel):
    """Everything known now."""

    version: str
    at: float
    targets: list[Target]


class FindingsAnswer(BaseModel):
    """Firing symptoms: causes before effects, then by severity."""

    at: float
    findings: list[FindingSchema]


class EventsAnswer(BaseModel):
    """Recent events, oldest first."""

    at: float
    events: list[EventSchema]
    transitions: list[TransitionSchema]


class EngineHistory(Identity):
    """The samples of one engine: a list per column, all of the same length, oldest first."""

    columns: dict[str, list[float | str | None]]
    latencies: dict[str, list[float | None]] = Field(
        description="quantiles of the time to first token over the minute before each `at`, seconds; null if too few"
        " requests had a first token. Histograms are kept for five minutes, and those before a restart of vLLM"
    )


class HistoryAnswer(BaseModel):
    """Samples at full resolution. Counters are increases since kvwatch first saw the engine, without resets: they
    do not change across a gap or a restart of vLLM (`/api/v1/events` has the restarts)."""

    at: float
    seconds: float
    units: dict[str, str] = Field(description="unit by column")
    engines: list[EngineHistory]


class BadScrape(BaseModel):
    """A failed scrape, and the beginning of the answer."""

    target: str
    at: float
    kind: str
    detail: str
    excerpt: str


class FailuresAnswer(BaseModel):
    """The latest failed scrapes, oldest first; at most 20 per target."""

    failures: list[BadScrape]


class Health(BaseModel):
    status: str
