"""The servers that kvwatch asks or tells: vLLMs to watch and Alertmanagers, and how people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import SplitResult, urlsplit, urlunsplit

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

from kvwatch.settings.values import from_json, split_words

MOST_SEQS = 1_000_000_000
DEFAULT_URL = "http://localhost:8000/metrics"
_NAMED = re.compile(r"(?P<name>[^=/?#@]*)=(?P<url>.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,255}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.:\[\]-]")
_GPU = re.compile(
    r"\d{1,4}(/\d{1,4})?|(GPU|MIG)-[0-9A-Fa-f-]{1,64}(/\d{1,4}){0,2}|pod:([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9.-]{1,253}"
)
#: An address of IPv6, which begins as a list in JSON does.
_ADDRESS = re.compile(r"\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%[^\]\s]*)?\]")


def gpu_names(given: Any) -> list[str]:
    """Names of GPUs, each once; ValueError says how one is written."""
    names = [
        str(name) if isinstance(name, int) and not isinstance(name, bool) else name for name in _listed(given)
    ]
    wrong = [name for name in names if not isinstance(name, str) or not _GPU.fullmatch(name)]
    if wrong:
        shown = ", ".join(repr(name)[:60] for name in wrong)
        raise ValueError(
            f"{shown}: not a GPU; write an index (0), a MIG instance (0/7), a UUID (GPU-…, MIG-…) or pod:NAME"
        )
    return list(dict.fromkeys(names))


def _listed(given: Any) -> list[Any]:
    return split_words([given] if isinstance(given, int) else given)


class ServerSettings(BaseModel):
    """One server: where it is, and how kvwatch makes itself known to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    url: str
    name: str = ""
    token_file: Path | None = Field(default=None, description="file that holds the token sent to it (bearer)")
    token: SecretStr | None = Field(default=None, description="token sent to it (bearer)")
    username: str | None = Field(
        default=None, description="user that it asks for (HTTP Basic); needs a password, and excludes a token"
    )
    password_file: Path | None = Field(default=None, description="file that holds the password of username")
    password: SecretStr | None = Field(default=None, description="password of username")
    ca_file: Path | None = Field(
        default=None, description="certificates (PEM) that its TLS certificate is checked against"
    )
    cert_file: Path | None = Field(
        default=None, description="certificate (PEM) to show to it, where it asks for one (mutual TLS)"
    )
    key_file: Path | None = Field(
        default=None,
        description="private key (PEM, without a passphrase) of cert_file (default: in cert_file)",
    )
    insecure_tls: bool = Field(default=False, description="do not check its TLS certificate")

    @field_validator("url")
    @classmethod
    def _whole_url(cls, url: str) -> str:
        return cls.whole(url)

    @classmethod
    def whole(cls, url: str) -> str:
        """The URL with all that may be left out."""
        return whole_url(url)

    @field_validator("name")
    @classmethod
    def _named(cls, name: str, info: ValidationInfo) -> str:
        if not name:
            return (
                _NOT_IN_A_NAME.sub("-", urlsplit(info.data["url"]).netloc)[:255] if "url" in info.data else ""
            )
        return target_name(name)

    @field_validator("token")
    @classmethod
    def _from_file(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        return secret_of(token, info.data.get("token_file"), "token")

    @field_validator("username")
    @classmethod
    def _no_token_beside(cls, username: str | None, info: ValidationInfo) -> str | None:
        if username is None:
            return None
        if info.data.get("token") is not None:
            raise ValueError("given beside a token: one of the two is sent; keep one")
        if not username or ":" in username or not username.isprintable():
            raise ValueError("a user name is a line of text without a colon")
        return username

    @field_validator("password")
    @classmethod
    def _of_the_user(cls, password: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        password = secret_of(password, info.data.get("password_file"), "password")
        if "username" in info.data and (password is None) != (info.data["username"] is None):
            raise ValueError("username and password (or password_file) go together: give both or none")
        return password

    @field_validator("token_file", "password_file", "ca_file", "cert_file", "key_file")
    @classmethod
    def _there(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_text(path)
        return path

    @field_validator("cert_file")
    @classmethod
    def _over_tls(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and not info.data.get("url", "https://").startswith("https://"):
            raise ValueError("a certificate is only shown over TLS: write https:// in the url")
        return path

    @field_validator("key_file")
    @classmethod
    def _of_a_certificate(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and "cert_file" in info.data and info.data["cert_file"] is None:
            raise ValueError("given without cert_file, whose key it is")
        return path


class TargetSettings(ServerSettings):
    """One vLLM server."""

    url: str = Field(
        default=DEFAULT_URL, description="where its metrics are; /metrics and http:// are added if left out"
    )
    name: str = Field(
        default="",
        description="what the label `target` says (default: host:port of the URL; where no target is given, vllm)",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SEQS,
        description="its --max-num-seqs, in requests; left out, the ceiling is inferred from a plateau",
    )
    gpus: Annotated[list[str], BeforeValidator(gpu_names)] = Field(
        default=[],
        description="its GPUs, several separated by commas: index, UUID, index/part for a MIG instance, or pod:NAME"
        " (default: all that are read)",
    )
    vllm_log: Path | None = Field(
        default=None,
        description="its log, a file that may grow, be rotated or not be there yet: says why it did not start",
    )


class AlertmanagerSettings(ServerSettings):
    """One Alertmanager that is told directly."""

    url: str = Field(
        description="where it is, with its path prefix if it has one; http:// is added if left out"
    )
    name: str = Field(
        default="", description="what the label `alertmanager` says (default: host:port of the URL)"
    )

    @classmethod
    def whole(cls, url: str) -> str:
        """The URL to which the paths of its API are added."""
        return whole_url(url, _INSTEAD.replace("target", "Alertmanager"), path="").rstrip("/")


def target_name(text: str) -> str:
    """`text` if a target may be named so, else ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError("a target's name may hold up to 255 letters, digits and _ . : [ ] - only")
    return text


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"can't read this file: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError("this file is not text") from None


def secret_of(secret: SecretStr | None, path: Path | None, what: str) -> SecretStr | None:
    """A token or password (`what`): as given, or what the file holds."""
    if path is not None and secret is not None:
        raise ValueError(f"given beside the file that holds it ({what}_file); keep one")
    if path is not None:
        secret = SecretStr(read_text(path).strip())
    if secret is not None and not secret.get_secret_value().strip():
        raise ValueError(
            f"the file {path} is empty" if path else f"is empty: leave it out to go without a {what}"
        )
    if secret is not None and not secret.get_secret_value().isprintable():
        raise ValueError(f"a {what} is one line of text")
    return secret


_INSTEAD = (
    "and give them as `username` and `password_file` of the target, or a token (bearer) as `token_file`"
)


def whole_url(url: str, instead: str = _INSTEAD, *, path: str = "/metrics") -> str:
    """`url` with scheme and path (`path` if it has none); ValueError with the remedy if it can't be one. `instead`
    of a user name in it."""
    url = url.strip()
    parts = _split(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"the scheme {parts.scheme} is not understood: use http:// or https://")
    if "@" in parts.netloc:
        raise ValueError(f"a user name or password in a URL shows up in logs: take it out, {instead}")
    if not parts.hostname or re.search(r"\s", url):
        raise ValueError(f"not a URL: write for example {DEFAULT_URL}")
    path = path if parts.path in {"", "/"} else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no number, or too large
    except ValueError:
        raise ValueError(f"not a URL: write for example {DEFAULT_URL}") from None
    return parts


Server = TypeVar("Server", bound=ServerSettings)


def targets_of(value: Any) -> list[TargetSettings]:
    """At least one target, as people write them."""
    return _servers(value, TargetSettings, "target", at_least=1)


def alertmanagers_of(value: Any) -> list[AlertmanagerSettings]:
    """Alertmanagers, as people write them; there may be none."""
    return _servers(value, AlertmanagerSettings, "Alertmanager")


def _servers(value: Any, model: type[Server], what: str, *, at_least: int = 0) -> list[Server]:
    """Servers from ``url`` or ``name=url`` separated by commas or spaces, from JSON, or from a list of either or
    of tables. All that is wrong with any of them is raised at once."""
    items: list[Any] = []
    wrong: list[InitErrorDetails] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        try:
            items += _items(one)
        except ValueError as error:
            wrong.append(_problem(str(error)))
    servers = []
    for number, item in enumerate(items):
        try:
            servers.append(model.model_validate(item))
        except ValidationError as error:
            wrong += [_within(number, one) for one in error.errors(include_url=False)]
    names = [server.name for server in servers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        wrong.append(
            _problem(f"two {what}s are named {', '.join(twice)}: give each its own name, as in name=URL")
        )
    if len(items) < at_least and not wrong:
        wrong.append(_problem(f"name at least one {what}"))
    if wrong:
        raise ValidationError.from_exception_data(f"{what}s", wrong, hide_input=True)
    return servers


def _within(number: int, error: ErrorDetails) -> InitErrorDetails:
    """What is wrong with one of the servers, as what is wrong with all of them."""
    kind: str | PydanticCustomError = error["type"]
    if kind not in get_args(ErrorType):  # what pydantic itself makes up, as of paths
        kind = PydanticCustomError(error["type"], "{message}", {"message": error["msg"]})
    return InitErrorDetails(
        type=kind, loc=(number, *error["loc"]), input=error["input"], ctx=error.get("ctx", {})
    )


def _problem(text: str) -> InitErrorDetails:
    return InitErrorDetails(type="value_error", loc=(), input=None, ctx={"error": ValueError(text)})


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("[", "{")) or _ADDRESS.match(text):
            return [parse_target(word) for word in re.split(r"[,\s]+", text) if word]
        value = from_json(text)
    if isinstance(value, Mapping | ServerSettings):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError("write a URL or name=URL, several separated by commas")  # noqa: TRY004 - as values does
    return [one for item in value for one in _items(item)]


def overridden(target: TargetSettings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of a target, with other values for some fields; one way to make oneself known for another."""
    said: dict[str, Any] = {name: getattr(target, name) for name in target.model_fields_set}
    gone: set[str] = set()
    if fields.keys() & {"token", "token_file"}:
        gone = {"token", "token_file", "username", "password", "password_file"}
    elif fields.keys() & {"username", "password", "password_file"}:
        gone = {"token", "token_file"} | (
            {"password", "password_file"} if "username" not in fields else set()
        )
    said = {name: value for name, value in said.items() if name not in gone}
    return {"name": target.name, "url": target.url} | said | dict(fields)


def same_server(one: str, other: str) -> bool:
    """Whether two URLs, however people write them, are the same; what can't be a URL is like no other."""
    try:
        return _canonical(one) == _canonical(other)
    except ValueError:
        return False


def _canonical(url: str) -> tuple[str, str, int, str, str]:
    parts = urlsplit(whole_url(url))
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return parts.scheme, (parts.hostname or "").removesuffix("."), port, parts.path, parts.query


def parse_target(text: str) -> dict[str, str]:
    found = _NAMED.fullmatch(text.strip())
    return {"name": found["name"].strip(), "url": found["url"]} if found else {"url": text}
