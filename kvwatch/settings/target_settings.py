"""The servers that kvwatch connects to: vLLMs that it watches, and Alertmanagers that it notifies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from kvwatch.settings.server_urls import DEFAULT_URL, parse_target, whole_url
from kvwatch.settings.values import ReadableFile, from_json, secret_of, setting, split_words

MOST_SEQS = 1_000_000_000

_NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,255}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.:\[\]-]")
_GPU = re.compile(
    r"\d{1,4}(/\d{1,4})?|(GPU|MIG)-[0-9A-Fa-f-]{1,64}(/\d{1,4}){0,2}|pod:([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9.-]{1,253}"
)
_IPV6 = re.compile(r"\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%[^\]\s]*)?\]")
"""An IPv6 address, which begins like a list in JSON."""


def target_name(text: str) -> str:
    """`text` if it is a valid name of a target, else ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError("not a valid name; use up to 255 letters, digits and _ . : [ ] -")
    return text


def gpu_names(given: Any) -> list[str]:
    """Names of GPUs without duplicates. ValueError with the syntax if one is invalid."""
    words = split_words([given] if isinstance(given, int) else given)
    names = [str(name) if isinstance(name, int) and not isinstance(name, bool) else name for name in words]
    wrong = [name for name in names if not isinstance(name, str) or not _GPU.fullmatch(name)]
    if wrong:
        shown = ", ".join(repr(name)[:60] for name in wrong)
        raise ValueError(
            f"{shown}: not a GPU; write an index (0), a MIG instance (0/7), a UUID (GPU-…, MIG-…) or pod:NAME"
        )
    return list(dict.fromkeys(names))


class ServerSettings(BaseModel):
    """One server: its URL, and how kvwatch authenticates to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    url: str
    name: str = ""
    token_file: ReadableFile | None = setting(None, "file with the token for the server (HTTP Bearer)")
    token: SecretStr | None = setting(None, "token for the server (HTTP Bearer)")
    username: str | None = setting(
        None, "user name (HTTP Basic); requires a password, can't be combined with a token"
    )
    password_file: ReadableFile | None = setting(None, "file with the password for username")
    password: SecretStr | None = setting(None, "password for username")
    ca_file: ReadableFile | None = setting(
        None, "CA certificates (PEM) that verify the server's TLS certificate"
    )
    cert_file: ReadableFile | None = setting(None, "client certificate (PEM) for mutual TLS")
    key_file: ReadableFile | None = setting(
        None, "private key (PEM, without a passphrase) of the client certificate (default: in cert_file)"
    )
    insecure_tls: bool = setting(False, "do not verify the server's TLS certificate")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return cls.complete_url(url)

    @classmethod
    def complete_url(cls, url: str) -> str:
        """The URL with all that may be left out."""
        return whole_url(url)

    @field_validator("name")
    @classmethod
    def _default_name(cls, name: str, info: ValidationInfo) -> str:
        """Without a name, host and port of the URL."""
        if name or "url" not in info.data:
            return target_name(name) if name else ""
        return _NOT_IN_A_NAME.sub("-", urlsplit(info.data["url"]).netloc)[:255]

    @field_validator("token")
    @classmethod
    def _read_token(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return secret_of(token, info.data.get("token_file"), "token")

    @field_validator("username")
    @classmethod
    def _check_username(cls, username: str | None, info: ValidationInfo) -> str | None:
        if username is None:
            return None
        if info.data.get("token") is not None:
            raise ValueError("set together with a token, but only one of them can be sent; keep one")
        if not username or ":" in username or not username.isprintable():
            raise ValueError("not a user name; write one line without a colon")
        return username

    @field_validator("password")
    @classmethod
    def _read_password(cls, password: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        password = secret_of(password, info.data.get("password_file"), "password")
        if "username" in info.data and (password is None) != (info.data["username"] is None):
            raise ValueError("username and password (or password_file) belong together; set both or none")
        return password

    @field_validator("cert_file")
    @classmethod
    def _check_tls(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and not info.data.get("url", "https://").startswith("https://"):
            raise ValueError("a client certificate requires TLS; write https:// in the url")
        return path

    @field_validator("key_file")
    @classmethod
    def _check_certificate(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and "cert_file" in info.data and info.data["cert_file"] is None:
            raise ValueError("set without cert_file; set the certificate of this key")
        return path


class TargetSettings(ServerSettings):
    """One vLLM server."""

    url: str = setting(DEFAULT_URL, "URL of the metrics; http:// and /metrics are added if missing")
    name: str = setting(
        "", "value of the label `target` (default: host:port of the URL; vllm if no target is set)"
    )
    max_num_seqs: int | None = setting(
        None,
        "the server's --max-num-seqs (default: inferred from a plateau of running requests)",
        ge=1,
        le=MOST_SEQS,
    )
    gpus: Annotated[list[str], BeforeValidator(gpu_names)] = setting(
        [],
        "the server's GPUs, separated by commas: index, UUID, index/instance for MIG, or pod:NAME (default: all"
        " GPUs found)",
    )
    vllm_log: Path | None = setting(
        None, "the server's log file, which shows why a start failed; it may grow, rotate, or not exist yet"
    )


class AlertmanagerSettings(ServerSettings):
    """One Alertmanager that kvwatch notifies directly."""

    url: str = Field(description="URL, with the path prefix if there is one; http:// is added if missing")
    name: str = setting("", "value of the label `alertmanager` (default: host:port of the URL)")

    @classmethod
    def complete_url(cls, url: str) -> str:
        """The base URL of its API."""
        remedy = "set `username` and `password_file` of the Alertmanager, or `token_file` for a bearer token"
        return whole_url(url, remedy, path="").rstrip("/")


def with_overrides(target: TargetSettings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a target with others in their place. A new way to authenticate replaces the old one."""
    given: dict[str, Any] = {name: getattr(target, name) for name in target.model_fields_set}
    replaced: set[str] = set()
    if fields.keys() & {"token", "token_file"}:
        replaced = {"token", "token_file", "username", "password", "password_file"}
    elif fields.keys() & {"username", "password", "password_file"}:
        replaced = {"token", "token_file"}
        replaced |= set() if "username" in fields else {"password", "password_file"}
    kept = {name: value for name, value in given.items() if name not in replaced}
    return {"name": target.name, "url": target.url} | kept | dict(fields)


# -- lists of servers --------------------------------------------------------------------------------------------

Server = TypeVar("Server", bound=ServerSettings)


def parse_targets(value: Any) -> list[TargetSettings]:
    """At least one target, in any notation."""
    return _parse_servers(value, TargetSettings, "target", at_least=1)


def parse_alertmanagers(value: Any) -> list[AlertmanagerSettings]:
    """Alertmanagers, in any notation; none is allowed."""
    return _parse_servers(value, AlertmanagerSettings, "Alertmanager")


def _parse_servers(value: Any, model: type[Server], kind: str, *, at_least: int = 0) -> list[Server]:
    """Servers from ``url`` or ``name=url`` separated by commas or spaces, from JSON, or from a list of either or of
    tables. Everything that is wrong with any of them is raised at once."""
    items: list[Any] = []
    servers: list[Server] = []
    wrong: list[InitErrorDetails] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        try:
            items += _items(one)
        except ValueError as error:
            wrong.append(_problem(str(error)))
    for number, item in enumerate(items):
        try:
            servers.append(model.model_validate(item))
        except ValidationError as error:
            wrong += [_within(number, one) for one in error.errors(include_url=False)]
    names = [server.name for server in servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        wrong.append(
            _problem(f"two {kind}s are named {', '.join(twice)}; give each its own name, as in name=URL")
        )
    if len(items) < at_least and not wrong:
        wrong.append(_problem(f"no {kind}; name at least one"))
    if wrong:
        raise ValidationError.from_exception_data(f"{kind}s", wrong, hide_input=True)
    return servers


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("[", "{")) or _IPV6.match(text):
            return [parse_target(word) for word in re.split(r"[,\s]+", text) if word]
        value = from_json(text)
    if isinstance(value, Mapping | ServerSettings):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError("not a list of servers; write URL or name=URL, separated by commas")  # noqa: TRY004 - as in values
    return [one for item in value for one in _items(item)]


def _within(number: int, error: ErrorDetails) -> InitErrorDetails:
    """An error of one server as an error of the list."""
    kind: str | PydanticCustomError = error["type"]
    if kind not in get_args(ErrorType):  # pydantic's own custom errors, for example of paths
        kind = PydanticCustomError(error["type"], "{message}", {"message": error["msg"]})
    return InitErrorDetails(
        type=kind, loc=(number, *error["loc"]), input=error["input"], ctx=error.get("ctx", {})
    )


def _problem(text: str) -> InitErrorDetails:
    return InitErrorDetails(type="value_error", loc=(), input=None, ctx={"error": ValueError(text)})
