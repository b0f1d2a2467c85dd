"""All settings, one field each, with default, unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
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
from kvwatch.settings.server_urls import whole_url
from kvwatch.settings.sources import MAPPINGS, SERVERS, Layer, LayerSource
from kvwatch.settings.target_settings import (
    AlertmanagerSettings,
    TargetSettings,
    parse_alertmanagers,
    parse_targets,
)
from kvwatch.settings.values import ReadableFile, duration, secret_of, setting, size
from kvwatch.text.redact import redact_url

Origin = tuple[str, str]
"""Where a value came from (default, file, env, flag) and its name there."""

_RAISED = "raised to the interval"
_AT_LEAST_INTERVAL = ("max_interval_s", "backoff_max_s")
"""Settings that must not be below the interval. Their defaults are raised to it."""

_layers: ContextVar[Sequence[Layer]] = ContextVar("layers", default=())


def within(low: float, high: float, message: str) -> AfterValidator:
    """A number from `low` to `high`; else `message` says what it must be."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"must be {message}")
        return value

    return AfterValidator(check)


POSITIVE = within(1e-9, 1e9, "above 0 and at most 1000000000")
Seconds = Annotated[float, BeforeValidator(duration)]
PositiveSeconds = Annotated[Seconds, POSITIVE]


class Settings(BaseSettings):
    """The settings of kvwatch, made from arguments alone, or by `of` from flags, environment and file."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    config: Path | None = setting(
        None,
        "settings file (TOML); keys are the flags with underscores, for example max_interval = 10; tables:"
        " [thresholds], [aliases], [[targets]], [[alertmanagers]]",
    )
    targets: Annotated[list[TargetSettings], BeforeValidator(parse_targets)] = setting(
        [TargetSettings(name="vllm")],
        "vLLM servers to watch: URL or NAME=URL, separated by commas, or JSON with the fields"
        f" {', '.join(TargetSettings.model_fields)}",
    )
    vllm_log: Path | None = setting(
        None,
        "log file of the server, followed as it grows, to report why vLLM did not start or why it stopped; with"
        " several targets, set vllm_log of each target instead",
    )
    interval_s: Annotated[Seconds, within(0.05, 3600, "from 0.05 to 3600 seconds")] = setting(
        1.0, "time between two scrapes, seconds"
    )
    timeout_s: PositiveSeconds | None = setting(
        None,
        "timeout of a scrape, seconds; must be below the interval (default: 0.9 of the interval, at most 10)",
    )
    max_interval_s: PositiveSeconds = setting(
        15.0, "longest interval between scrapes while vLLM is slow, seconds; at least the interval"
    )
    backoff_max_s: PositiveSeconds = setting(
        10.0, "longest wait between scrapes of a server that is down, seconds; at least the interval"
    )
    full_interval_s: PositiveSeconds = setting(
        15.0, "time between two reads of histogram buckets and configuration, seconds"
    )
    duty_cycle: Annotated[
        float, within(1e-9, 0.5, "above 0 and at most 0.5 (0.01 is 1 % of vLLM's time)")
    ] = setting(0.01, "share of its time that vLLM may spend on answering scrapes; above 0, at most 0.5")
    narrow: Literal["auto", "never"] = setting(
        "auto",
        "auto: request only the metrics that kvwatch reads, if vLLM supports that; never: request the whole"
        " page",
    )
    max_body_bytes: Annotated[
        int,
        BeforeValidator(size),
        within(4096, 1 << 30, "from 4 KiB to 1 GiB; a page of vLLM has about 50 kB per engine"),
    ] = setting(16 << 20, "largest /metrics page that kvwatch reads, bytes")
    spellings: Annotated[list[str], BeforeValidator(names.prefixes)] = setting(
        [],
        "additional prefixes of vLLM's metric names, as relays write them, separated by commas; known from"
        f" relays: {', '.join(RELAY_SPELLINGS)} (always read: {', '.join(NATIVE_SPELLINGS)})",
    )
    aliases: Annotated[dict[str, str], BeforeValidator(names.aliases)] = setting(
        {},
        "additional vLLM names of signals, signal=name, separated by commas, for example"
        " kv_cache_usage_ratio=kv_usage_new",
    )
    thresholds: Annotated[dict[str, float], BeforeValidator(names.thresholds)] = setting(
        {},
        "thresholds of regimes and symptoms, name=value, separated by commas, for example"
        " kv_thrashing.per_request=0.3",
    )
    disabled: Annotated[list[str], BeforeValidator(names.symptoms)] = setting(
        [], "symptoms to disable, by id, separated by commas"
    )
    min_observations: Annotated[float, POSITIVE] = setting(
        20, "minimum number of observations for a quantile"
    )
    unknown_grace_s: PositiveSeconds = setting(
        60.0, "how long signals may be missing before a symptom becomes unknown, seconds"
    )
    history_s: Annotated[
        Seconds, within(300, 86_400, "from 300 (the longest window of a judgement) to 86400 seconds")
    ] = setting(600.0, "how long kvwatch keeps samples at full resolution, seconds")
    gpu: Literal["auto", "dcgm", "nvml", "off"] = setting(
        "auto",
        "source of GPU data: a DCGM exporter (dcgm), the driver (nvml, requires kvwatch[nvml]), none (off), or"
        " (auto) the first that answers: gpu_url, an exporter on port 9400 of this host, the driver",
    )
    gpu_url: str | None = setting(
        None,
        "URL of a DCGM exporter, for example http://localhost:9400; http:// and /metrics are added if"
        " missing",
    )
    gpu_interval_s: Annotated[Seconds, within(0.5, 3600, "from 0.5 to 3600 seconds")] = setting(
        5.0, "time between two readings of the GPUs, seconds"
    )
    alertmanagers: Annotated[list[AlertmanagerSettings], BeforeValidator(parse_alertmanagers)] = setting(
        [],
        "Alertmanagers to notify directly: URL or NAME=URL, separated by commas, or JSON with the fields"
        f" {', '.join(AlertmanagerSettings.model_fields)} (default: none)",
    )
    notify_repeat_s: Annotated[Seconds, within(1, 3600, "from 1 to 3600 seconds")] = setting(
        60.0,
        "time after which a firing alert is sent again, seconds; Alertmanager resolves an alert after three"
        " times as long without one",
    )
    external_url: str | None = setting(
        None,
        "URL of kvwatch's page, for example https://kvwatch.example.com, for links in alerts that kvwatch"
        " sends (default: this host and port)",
    )
    host: str = setting("0.0.0.0", "address to listen on")  # noqa: S104 - a sidecar is there to be scraped
    port: Annotated[int, within(0, 65_535, "from 0 to 65535")] = setting(
        9477, "port to listen on; 0: any free port"
    )
    api_token_file: ReadableFile | None = setting(
        None, "file with the token that kvwatch's own endpoints require (HTTP Bearer)"
    )
    api_token: SecretStr | None = setting(
        None, "token that kvwatch's own endpoints require (HTTP Bearer), except /healthz and /readyz"
    )
    tls_cert: ReadableFile | None = setting(None, "certificate (PEM) to serve HTTPS with; requires tls_key")
    tls_key: ReadableFile | None = setting(None, "private key (PEM) of tls_cert")
    log_format: Literal["text", "json"] = setting("text", "format of log lines")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "lowest level of log lines")

    _origins: dict[tuple[str, ...], Origin] = PrivateAttr(default_factory=dict)
    _notes: tuple[str, ...] = PrivateAttr(default=())

    # -- sources -------------------------------------------------------------------------------------------------

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
        """The settings of these layers; earlier ones win. ValidationError with everything that is wrong."""
        token = _layers.set(layers)
        try:
            settings = cls()
        finally:
            _layers.reset(token)
        settings._origins = _origins(layers)
        settings._notes = tuple(note for layer in layers for note in layer.notes)
        return settings

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the sources, such as ignored variables."""
        return self._notes

    def with_notes(self, notes: Iterable[str]) -> Self:
        """These settings with more notes."""
        self._notes += tuple(notes)
        return self

    def origin(self, *path: str) -> Origin:
        """Where a value came from: a field, or a field and an entry of it."""
        name = path[0]
        raised = name in _AT_LEAST_INTERVAL and getattr(self, name) != type(self).model_fields[name].default
        return self._origins.get(path, ("default", _RAISED if raised else ""))

    # -- derived values ------------------------------------------------------------------------------------------

    @property
    def effective_timeout_s(self) -> float:
        """Timeout of a scrape, seconds."""
        return self.timeout_s or min(0.9 * self.interval_s, 10.0)

    def log_of(self, target: TargetSettings) -> Path | None:
        """The log file of a target."""
        return target.vllm_log or (self.vllm_log if len(self.targets) == 1 else None)

    def policy(self, target: TargetSettings) -> Policy:
        """The policy for judging one target."""
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

    # -- checks --------------------------------------------------------------------------------------------------

    @field_validator("vllm_log")
    @classmethod
    def _check_single_target(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and len(info.data.get("targets", ())) > 1:
            raise ValueError("ambiguous with several targets; set the field vllm_log of each target")
        return value

    @model_validator(mode="before")
    @classmethod
    def _raise_to_interval(cls, given: Any) -> Any:
        """A long interval raises the defaults that must not be below it."""
        if not isinstance(given, dict) or "interval_s" not in given:
            return given
        with suppress(ValueError):  # the field itself reports what is wrong with it
            interval = duration(given["interval_s"])
            defaults = {name: max(interval, cls.model_fields[name].default) for name in _AT_LEAST_INTERVAL}
            return defaults | given
        return given

    @field_validator("timeout_s", *_AT_LEAST_INTERVAL)
    @classmethod
    def _compare_with_interval(cls, value: float | None, info: ValidationInfo) -> float | None:
        interval = info.data.get("interval_s")
        if value is None or interval is None:
            return value
        if info.field_name == "timeout_s" and value >= interval:
            raise ValueError(
                f"must be below the interval of {interval:g} s; shorten it, or raise the interval"
            )
        if info.field_name != "timeout_s" and value < interval:
            raise ValueError(
                f"must not be below the interval of {interval:g} s; raise it, or shorten the interval"
            )
        return value

    @field_validator("gpu_url")
    @classmethod
    def _check_exporter(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("gpu") == "nvml":
            raise ValueError("set together with gpu = nvml, which reads no exporter; keep one")
        return None if value is None else whole_url(value, "DCGM exporters need none")

    @field_validator("external_url")
    @classmethod
    def _check_external_url(cls, value: str | None) -> str | None:
        return None if value is None else whole_url(value, "alerts show this one; leave it out", path="/")

    @field_validator("api_token")
    @classmethod
    def _read_token(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return secret_of(value, info.data.get("api_token_file"), "api_token")

    @field_validator("tls_key")
    @classmethod
    def _check_key_pair(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "tls_cert" in info.data and (value is None) != (info.data["tls_cert"] is None):
            raise ValueError("tls_cert and tls_key belong together; set both or none")
        return value


def _origins(layers: Iterable[Layer]) -> dict[tuple[str, ...], Origin]:
    found: dict[tuple[str, ...], Origin] = {}
    for layer in layers:
        for name, value in layer.values.items():
            origin = (layer.kind, layer.spelled[name])
            found.setdefault((name,), origin)
            for entry in value if name in MAPPINGS else ():
                found.setdefault((name, entry), origin)
    return found


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The values of a setting that has a fixed set of them."""
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
