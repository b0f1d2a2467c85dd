"""Everything that can be set, one field each, with its default, unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kvwatch.core.dialect.vllm import NATIVE_SPELLINGS, RELAY_SPELLINGS, Vocabulary
from kvwatch.core.judgement.policy import Policy
from kvwatch.settings import names
from kvwatch.settings.sources import MAPPINGS, SERVERS, Layer, LayerSource
from kvwatch.settings.target_settings import (
    AlertmanagerSettings,
    TargetSettings,
    alertmanagers_of,
    read_text,
    secret_of,
    targets_of,
    whole_url,
)
from kvwatch.settings.values import duration, size
from kvwatch.text.redact import redact_url

Seconds = Annotated[float, BeforeValidator(duration)]
Bytes = Annotated[int, BeforeValidator(size)]
Origin = tuple[str, str]
"""Where a value came from (default, file, env, flag) and what it was called there."""
_RAISED = "raised to the interval"
#: Never below the interval: a default that is, is raised to it.
_AT_LEAST_INTERVAL = ("max_interval_s", "backoff_max_s")
_layers: ContextVar[Sequence[Layer]] = ContextVar("layers", default=())


def within(low: float, high: float, message: str) -> AfterValidator:
    """A number from `low` to `high`; `message` says what it must be."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(message)
        return value

    return AfterValidator(check)


POSITIVE = within(1e-9, 1e9, "must be above 0 and at most 1000000000")


class Settings(BaseSettings):
    """The settings of kvwatch: made from arguments alone, or by `of` from what flags, environment and file say."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    config: Path | None = Field(
        default=None,
        description="settings file, TOML; keys as the options, as max_interval = 10, [thresholds], [[targets]]",
    )
    targets: Annotated[list[TargetSettings], BeforeValidator(targets_of)] = Field(
        default=[TargetSettings(name="vllm")],
        description="vLLM servers to watch: URL or name=URL, several separated by commas, or JSON with the fields"
        f" {', '.join(TargetSettings.model_fields)}",
    )
    vllm_log: Path | None = Field(
        default=None,
        description="the log of the server, where one is watched (of several each has its own, as the field vllm_log"
        " of the target): read as it grows, to say why it did not start or why it ended",
    )
    interval_s: Annotated[Seconds, within(0.05, 3600, "must be from 0.05 to 3600 seconds")] = Field(
        default=1.0, description="time between two scrapes, seconds"
    )
    timeout_s: Annotated[Seconds, POSITIVE] | None = Field(
        default=None,
        description="give up a scrape after this long, seconds; below the interval (default: 0.9 of it, at most 10)",
    )
    max_interval_s: Annotated[Seconds, POSITIVE] = Field(
        default=15.0,
        description="the longest interval that a slow vLLM may stretch the scraping to, seconds;"
        " at least the interval",
    )
    backoff_max_s: Annotated[Seconds, POSITIVE] = Field(
        default=10.0,
        description="the longest wait between two tries of a server that is down, seconds; at least the interval",
    )
    full_interval_s: Annotated[Seconds, POSITIVE] = Field(
        default=15.0, description="how often histogram buckets and configuration are read, seconds"
    )
    duty_cycle: Annotated[
        float, within(1e-9, 0.5, "must be above 0 and at most 0.5 (0.01 is 1 % of vLLM's time)")
    ] = Field(
        default=0.01,
        description="share of wall time that vLLM may spend on answering scrapes, above 0, at most 0.5",
    )
    narrow: Literal["auto", "never"] = Field(
        default="auto",
        description="ask vLLM for only the families that are read, where it can (auto), or never",
    )
    max_body_bytes: Annotated[
        Bytes, within(4096, 1 << 30, "must be from 4 KiB to 1 GiB; a page of vLLM has about 50 kB per engine")
    ] = Field(default=16 << 20, description="largest page that is read, bytes")
    spellings: Annotated[list[str], BeforeValidator(names.prefixes)] = Field(
        default=[],
        description="further prefixes of vLLM's metric names, as relays write them, several separated by commas; seen"
        f" in the wild: {', '.join(RELAY_SPELLINGS)} (always understood: {', '.join(NATIVE_SPELLINGS)})",
    )
    aliases: Annotated[dict[str, str], BeforeValidator(names.aliases)] = Field(
        default={},
        description="further vLLM names of a signal, signal=name, several separated by commas,"
        " as kv_cache_usage_ratio=kv_usage_new",
    )
    thresholds: Annotated[dict[str, float], BeforeValidator(names.thresholds)] = Field(
        default={},
        description="numbers that judgements turn on, name=value, several separated by commas,"
        " as kv_thrashing.per_request=0.3",
    )
    disabled: Annotated[list[str], BeforeValidator(names.symptoms)] = Field(
        default=[], description="symptoms that are not judged, by id, several separated by commas"
    )
    min_observations: Annotated[float, POSITIVE] = Field(
        default=20, description="fewer observations than this give no quantile"
    )
    unknown_grace_s: Annotated[Seconds, POSITIVE] = Field(
        default=60.0,
        description="how long a verdict may be unknown before that is a state of its own, seconds",
    )
    history_s: Annotated[
        Seconds, within(300, 86_400, "must be from 300 (the longest window of a judgement) to 86400 seconds")
    ] = Field(default=600.0, description="how much of the past is kept at full resolution, seconds")
    gpu: Literal["auto", "dcgm", "nvml", "off"] = Field(
        default="auto",
        description="where GPU data comes from: a DCGM exporter (dcgm), the driver (nvml, with kvwatch[nvml]), none"
        " (off), or whatever is there (auto): gpu_url, else an exporter on port 9400 of this host, else the driver",
    )
    gpu_url: str | None = Field(
        default=None,
        description="where a DCGM exporter's metrics are, as http://localhost:9400; /metrics and http:// are added if"
        " left out",
    )
    gpu_interval_s: Annotated[Seconds, within(0.5, 3600, "must be from 0.5 to 3600 seconds")] = Field(
        default=5.0, description="time between two readings of the GPUs, seconds"
    )
    alertmanagers: Annotated[list[AlertmanagerSettings], BeforeValidator(alertmanagers_of)] = Field(
        default=[],
        description="Alertmanagers to tell directly of what fires: URL or name=URL, several separated by commas, or"
        f" JSON with the fields {', '.join(AlertmanagerSettings.model_fields)} (default: none)",
    )
    notify_repeat_s: Annotated[Seconds, within(1, 3600, "must be from 1 to 3600 seconds")] = Field(
        default=60.0,
        description="how often an Alertmanager is told again of what still fires, seconds; what it is not told of for"
        " three times as long is over there by itself",
    )
    external_url: str | None = Field(
        default=None,
        description="where people reach kvwatch's page, as https://kvwatch.example.com; alerts sent directly link to"
        " it (default: this host and port)",
    )
    host: str = Field(default="0.0.0.0", description="address to serve on")  # noqa: S104 - a sidecar is there to be scraped
    port: Annotated[int, within(0, 65_535, "must be from 0 to 65535")] = Field(
        default=9477, description="port to serve on; 0 takes a free one"
    )
    api_token_file: Path | None = Field(
        default=None, description="file that holds the token (bearer) which kvwatch's own pages ask for"
    )
    api_token: SecretStr | None = Field(
        default=None,
        description="token (bearer) which kvwatch's own pages ask for; /healthz and /readyz stay open",
    )
    tls_cert: Path | None = Field(default=None, description="certificate (PEM) to serve with; needs tls_key")
    tls_key: Path | None = Field(default=None, description="private key (PEM) of tls_cert")
    log_format: Literal["text", "json"] = Field(default="text", description="how log lines are written")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe lines logged"
    )

    _origins: dict[tuple[str, ...], Origin] = PrivateAttr(default_factory=dict)
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_args: PydanticBaseSettingsSource,
        **_sources: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, *(LayerSource(settings_cls, layer) for layer in _layers.get())

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Self:
        """The settings that layers say, the first of them first; ValidationError with all that is wrong."""
        token = _layers.set(layers)
        try:
            settings = cls()
        finally:
            _layers.reset(token)
        settings._origins = _origins(layers)
        settings._notes = tuple(note for layer in layers for note in layer.notes)
        return settings

    # -- what else they say --------------------------------------------------------------------------------------

    @property
    def effective_timeout_s(self) -> float:
        """Seconds after which a scrape is given up."""
        return self.timeout_s or min(0.9 * self.interval_s, 10.0)

    def log_of(self, target: TargetSettings) -> Path | None:
        """The file that the target's log is read from."""
        return target.vllm_log or (self.vllm_log if len(self.targets) == 1 else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about where the settings came from, such as ignored variables."""
        return self._notes

    def origin(self, *path: str) -> Origin:
        """Where a value came from: a field, or a field and an entry of it."""
        name = path[0]
        raised = name in _AT_LEAST_INTERVAL and getattr(self, name) != type(self).model_fields[name].default
        return self._origins.get(path, ("default", _RAISED if raised else ""))

    def noting(self, notes: Iterable[str]) -> Self:
        """These settings, with more that the user should know."""
        self._notes += tuple(notes)
        return self

    def policy(self, target: TargetSettings) -> Policy:
        """The judgement of one target."""
        return Policy(
            vocabulary=Vocabulary(
                spellings=tuple(dict.fromkeys((*NATIVE_SPELLINGS, *self.spellings))),
                extra=tuple(
                    names.alias(signal, name, self.spellings) for signal, name in self.aliases.items()
                ),
            ),
            thresholds=dict(self.thresholds),
            disabled=frozenset(self.disabled),
            max_num_seqs=target.max_num_seqs,
            gpus=tuple(target.gpus),
            full_interval_s=self.full_interval_s,
            min_observations=self.min_observations,
            unknown_grace_s=self.unknown_grace_s,
            history_s=self.history_s,
        )

    # -- what they must be ---------------------------------------------------------------------------------------

    @field_validator("vllm_log")
    @classmethod
    def _of_one(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and len(info.data.get("targets", ())) > 1:
            raise ValueError(
                "several servers are watched: give each its own, as the field vllm_log of the target"
            )
        return value

    @field_validator("timeout_s")
    @classmethod
    def _below_interval(cls, value: float | None, info: ValidationInfo) -> float | None:
        interval = info.data.get("interval_s")
        if value is not None and interval is not None and value >= interval:
            raise ValueError(
                f"must be below the interval of {interval:g} s: shorten it, or lengthen the interval"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _raised(cls, given: Any) -> Any:
        """Nobody who asks for a long interval asks for less in what may not be below it."""
        if not isinstance(given, dict) or "interval_s" not in given:
            return given
        with suppress(ValueError):  # the field itself says what is wrong with it
            interval = duration(given["interval_s"])
            defaults = {name: max(interval, cls.model_fields[name].default) for name in _AT_LEAST_INTERVAL}
            return defaults | given
        return given

    @field_validator(*_AT_LEAST_INTERVAL)
    @classmethod
    def _not_below_interval(cls, value: float, info: ValidationInfo) -> float:
        interval = info.data.get("interval_s", 0.0)
        if value < interval:
            raise ValueError(f"must not be below the interval of {interval:g} s")
        return value

    @field_validator("gpu_url")
    @classmethod
    def _of_an_exporter(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("gpu") == "nvml":
            raise ValueError("given beside gpu = nvml, which reads no exporter; keep one")
        return None if value is None else whole_url(value, "no exporter is asked with one")

    @field_validator("external_url")
    @classmethod
    def _of_the_page(cls, value: str | None) -> str | None:
        return None if value is None else whole_url(value, "it is shown in alerts", path="/")

    @field_validator("api_token")
    @classmethod
    def _from_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return secret_of(value, info.data.get("api_token_file"), "api_token")

    @field_validator("api_token_file", "tls_cert", "tls_key")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_text(value)
        return value

    @field_validator("tls_key")
    @classmethod
    def _both_or_none(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "tls_cert" in info.data and (value is None) != (info.data["tls_cert"] is None):
            raise ValueError("tls_cert and tls_key go together: give both or none")
        return value


def _origins(layers: Iterable[Layer]) -> dict[tuple[str, ...], Origin]:
    found: dict[tuple[str, ...], Origin] = {}
    for layer in layers:
        for name, value in layer.values.items():
            origin = (layer.kind, layer.spelled[name])
            found.setdefault((name,), origin)
            if name in MAPPINGS:
                for entry in value:
                    found.setdefault((name, entry), origin)
    return found


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words that a setting may be, if it may only be some."""
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def dump(settings: Settings) -> dict[str, Any]:
    """The values as plain data, secrets as stars."""
    values = settings.model_dump(mode="json")
    for kind in SERVERS:
        for server in values[kind]:
            server["url"] = redact_url(server["url"])
    for name in ("gpu_url", "external_url"):
        if values[name] is not None:
            values[name] = redact_url(values[name])
    return values
