"""What an installation may change about what is rendered: a TOML file for `kvwatch render --config FILE`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvwatch.core.export.alert_names import PREFIX
from kvwatch.core.judgement.symptoms import Severity
from kvwatch.settings.values import nearest

#: The bounds that every generation of vLLM gives its histogram of the time to first token, in seconds.
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
#: How many times as fast as it may the error budget burns when someone is woken, and when someone is told.
FAST, SLOW = 14.4, 6.0

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"'
_SELECTOR = re.compile(rf"{_MATCHER}(?:\s*,\s*{_MATCHER})*")
_OWN_LABELS = {"alertname", "severity", "symptom", "target", "model_name", "engine", "job", "instance"}
_OWN_ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard_url"}


class OptionsError(Exception):
    """The file can't be used; `problems` says what to change, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def _url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s{}]+", value):
        raise ValueError("write an address that begins with http:// or https://")
    return value.rstrip("/")


def _selector(value: str) -> str:
    if value and not _SELECTOR.fullmatch(value.strip()):
        raise ValueError("""write matchers as PromQL has them, for example 'cluster="east",team=~"a|b"'""")
    return value.strip()


def _names_but(own: Collection[str]) -> Any:
    def check(value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name}: not a name; write letters, digits and _")
            if name in own:
                raise ValueError(f"{name} is kvwatch's own; choose another name")
        return value

    return AfterValidator(check)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ttft(_Model):
    """The objective: this share of first tokens comes within so many seconds."""

    seconds: float = Field(
        default=2.5, description="First tokens should come within this, a bucket bound of vLLM's."
    )
    share: float = Field(default=0.95, description="This share of them.", lt=1)

    @model_validator(mode="after")
    def _can_be_told(self) -> Ttft:
        if self.seconds not in TTFT_BOUNDS:
            bounds = ", ".join(f"{bound:g}" for bound in TTFT_BOUNDS)
            raise ValueError(f"{self.seconds:g} s is no bucket bound of vLLM's; choose one of {bounds}")
        if self.burn(FAST) >= 1:
            raise ValueError(
                f"a share of {self.share:g} leaves a budget that can't burn {FAST:g} times as fast as it may;"
                f" write more than {1 - 1 / FAST:.3f}"
            )
        return self

    def burn(self, factor: float) -> float:
        """The share of late first tokens at which the budget burns so many times as fast as it may."""
        return round(factor * (1 - self.share), 6)


class Options(_Model):
    """The defaults are what is committed."""

    runbook_url: Annotated[str, AfterValidator(_url)] = Field(
        default="https://example.com/kvwatch/runbooks",
        description="Where `alerts/runbooks/` is published; each alert links to its page.",
        min_length=1,
    )
    dashboard_url: Annotated[str, AfterValidator(_url)] = Field(
        default="", description="A dashboard of yours that each alert links to."
    )
    grafana_url: Annotated[str, AfterValidator(_url)] = Field(
        default="",
        description="Your Grafana: without a `dashboard_url` each alert links to the dashboard of its server there.",
    )
    job: str = Field(
        default="kvwatch",
        pattern=r"^[^\"\\\n]+$",
        description="The job under which Prometheus scrapes kvwatch, for what asks for `up`.",
    )
    selector: Annotated[str, AfterValidator(_selector)] = Field(
        default="", description="Matchers that every expression has besides, as PromQL writes them."
    )
    labels: Annotated[dict[str, str], _names_but(_OWN_LABELS)] = Field(
        default={}, description="Labels that every alert gets."
    )
    annotations: Annotated[dict[str, str], _names_but(_OWN_ANNOTATIONS)] = Field(
        default={}, description="Annotations that every alert gets."
    )
    rule_labels: dict[str, str] = Field(
        default={}, description="Labels of the PrometheusRule object, by which the operator selects it."
    )
    severity: dict[str, Severity] = Field(
        default={}, description="Severities by name of alert: critical, warning or info."
    )
    disabled: frozenset[str] = Field(default=frozenset(), description="Names of alerts that are left out.")
    ttft: Ttft = Field(
        default=Ttft(), description="The objective for the time to first token: `seconds` and `share`."
    )

    def named(self, alerts: Collection[str]) -> None:
        """OptionsError unless every alert that the file names is one of these."""
        unknown = [
            f"{where}: there is no alert {name}{nearest(name, alerts)}"
            for where, names in (("severity", self.severity), ("disabled", sorted(self.disabled)))
            for name in names
            if name not in alerts
        ]
        if unknown:
            raise OptionsError(unknown)


def read(path: Path | None) -> Options:
    """The options of a file, the defaults without one; OptionsError says what is wrong with it."""
    if path is None:
        return Options()
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionsError([f"{path}: {error.strerror or error}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionsError([f"{path}: not TOML: {error}"]) from None
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        raise OptionsError(
            f"{path}: {_problem(found['type'], found['loc'], found['msg'])}" for found in error.errors()
        ) from None


def _problem(kind: str, loc: tuple[int | str, ...], said: str) -> str:
    where = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        known = [*Options.model_fields] if len(loc) == 1 else [*Ttft.model_fields]
        return f"{where}: no such key{nearest(str(loc[-1]), known)}; there are {', '.join(known)}"
    return f"{where}: {said.removeprefix('Value error, ')}"


def alert(words: str) -> str:
    """The name of an alert that is no symptom's."""
    return PREFIX + words
