"""Options for rendering alerts and dashboards: the TOML file of `kvwatch render --config FILE`."""

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

TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket bounds of vLLM's TTFT histogram in every generation, in seconds."""

FAST, SLOW = 14.4, 6.0
"""Burn rates of the critical and of the warning alert: multiples of the rate that uses up the error budget."""

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"'
_SELECTOR = re.compile(rf"{_MATCHER}(?:\s*,\s*{_MATCHER})*")
_OWN_LABELS = {"alertname", "severity", "symptom", "target", "model_name", "engine", "job", "instance"}
_OWN_ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard_url"}


class OptionsError(Exception):
    """The file can't be used. Each line of the text is one problem: place, what is wrong, remedy."""

    def __init__(self, problems: Iterable[str]) -> None:
        super().__init__("\n".join(problems))


def _url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s{}]+", value):
        raise ValueError("not a URL; write one that begins with http:// or https://")
    return value.rstrip("/")


def _selector(value: str) -> str:
    if value and not _SELECTOR.fullmatch(value.strip()):
        raise ValueError("""no PromQL matchers; write for example 'cluster="east",team=~"a|b"'""")
    return value.strip()


def _names_except(own: Collection[str]) -> Any:
    def check(value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name}: not a valid name; use letters, digits and _")
            if name in own:
                raise ValueError(f"{name} is reserved for kvwatch; choose another name")
        return value

    return AfterValidator(check)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ttft(_Model):
    """The TTFT objective: this share of first tokens arrives within so many seconds."""

    seconds: float = Field(
        default=2.5, description="Target for the TTFT; must be one of vLLM's bucket bounds."
    )
    share: float = Field(default=0.95, description="Share of requests that meet it.", lt=1)

    @model_validator(mode="after")
    def _is_measurable(self) -> Ttft:
        if self.seconds not in TTFT_BOUNDS:
            bounds = ", ".join(f"{bound:g}" for bound in TTFT_BOUNDS)
            raise ValueError(f"{self.seconds:g} s is not a bucket bound of vLLM; choose one of {bounds}")
        if self.burn(FAST) >= 1:
            raise ValueError(
                f"with a share of {self.share:g} the burn rate can't reach {FAST:g};"
                f" write more than {1 - 1 / FAST:.3f}"
            )
        return self

    def burn(self, factor: float) -> float:
        """The share of late first tokens that corresponds to a burn rate of `factor`."""
        return round(factor * (1 - self.share), 6)


class Options(_Model):
    """The committed files are rendered with the defaults."""

    runbook_url: Annotated[str, AfterValidator(_url)] = Field(
        default="https://example.com/kvwatch/runbooks",
        description="Base URL of the published `alerts/runbooks/`. Each alert links to its runbook.",
        min_length=1,
    )
    dashboard_url: Annotated[str, AfterValidator(_url)] = Field(
        default="", description="URL of your own dashboard. Each alert links to it."
    )
    grafana_url: Annotated[str, AfterValidator(_url)] = Field(
        default="",
        description="URL of your Grafana. Without `dashboard_url`, each alert links to its target's dashboard there.",
    )
    job: str = Field(
        default="kvwatch",
        pattern=r"^[^\"\\\n]+$",
        description="Job under which Prometheus scrapes kvwatch; used in queries of `up`.",
    )
    selector: Annotated[str, AfterValidator(_selector)] = Field(
        default="", description="PromQL matchers added to every expression."
    )
    labels: Annotated[dict[str, str], _names_except(_OWN_LABELS)] = Field(
        default={}, description="Labels added to every alert."
    )
    annotations: Annotated[dict[str, str], _names_except(_OWN_ANNOTATIONS)] = Field(
        default={}, description="Annotations added to every alert."
    )
    rule_labels: dict[str, str] = Field(
        default={}, description="Labels of the PrometheusRule object, for the operator's rule selector."
    )
    severity: dict[str, Severity] = Field(
        default={}, description="Severity by alert name: critical, warning or info."
    )
    disabled: frozenset[str] = Field(default=frozenset(), description="Alerts to leave out.")
    ttft: Ttft = Field(default=Ttft(), description="TTFT objective: `seconds` and `share`.")

    def check_names(self, alerts: Collection[str]) -> None:
        """OptionsError if the file names an alert that is not among `alerts`."""
        unknown = [
            f"{where}: unknown alert {name}{nearest(name, alerts)}"
            for where, names in (("severity", self.severity), ("disabled", sorted(self.disabled)))
            for name in names
            if name not in alerts
        ]
        if unknown:
            raise OptionsError(unknown)


def read(path: Path | None) -> Options:
    """The options in a file, or the defaults. OptionsError lists everything that is wrong."""
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


def _problem(kind: str, loc: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        known = [*Options.model_fields] if len(loc) == 1 else [*Ttft.model_fields]
        return f"{where}: unknown key{nearest(str(loc[-1]), known)}; known: {', '.join(known)}"
    return f"{where}: {message.removeprefix('Value error, ')}"


def meta_name(words: str) -> str:
    """Name of an alert that belongs to no symptom."""
    return PREFIX + words
