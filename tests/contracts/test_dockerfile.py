"""The image's promises, read out of the Dockerfile: no engine is needed to hold them."""

import json
import re
import shlex
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kvwatch import healthcheck
from kvwatch.settings import Settings
from tests.support.dockerfile import Stage, parse
from tests.support.machine import has_ipv6

ROOT = Path(__file__).resolve().parents[2]
BUILD_TOOLS = re.compile(r"\b(gcc|g\+\+|make|build-essential|apt-get|apk|pip3? install|curl|wget|git)\b")


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def final(stages: list[Stage]) -> Stage:
    return stages[-1]


@pytest.fixture(scope="module")
def environment(final: Stage) -> dict[str, str]:
    return final.environment()


@pytest.fixture(scope="module")
def port() -> int:
    default = Settings.model_fields["port"].default
    assert isinstance(default, int)
    return default


def test_builds_in_one_stage_and_runs_in_another_of_the_same_slim_image(stages: list[Stage]) -> None:
    builder, final = stages
    assert builder.name
    assert builder.image == final.image
    assert re.fullmatch(r"python:\S+-slim", final.image)
    # A virtual environment is only good where it was made: the same path in both.
    (copied,) = final.all("COPY")
    assert re.fullmatch(rf"--from={builder.name} (/\S+) \1", copied)


def test_installs_only_what_is_held_against_a_hash(stages: list[Stage]) -> None:
    """Every step of pip but two needs hashes, and those two ask no registry."""
    builder = stages[0]
    assert builder.environment()["PIP_REQUIRE_HASHES"] == "1"
    steps = [step.strip() for step in builder.one("RUN").split("&&")]
    asking = [step for step in steps if re.match(r"pip .*\binstall\b", step)]
    assert [re.findall(r"-r (\S+)", step) for step in asking] == [[".ci/build.txt"], [".ci/requirements.txt"]]
    unhashed = [step for step in steps if "PIP_REQUIRE_HASHES= " in step]
    assert len(unhashed) == 2
    assert all("--no-index" in step and "--no-deps" in step for step in unhashed)
    assert all("pip" not in step for step in steps if step not in {*asking, *unhashed} and "venv" not in step)


@pytest.mark.parametrize("name", ["build", "requirements"])
def test_the_hashed_files_are_the_pinned_versions(name: str) -> None:
    """Each release with the hashes of its files, and nothing else: no registry is named."""
    text = (ROOT / ".ci" / f"{name}.txt").read_text(encoding="utf-8")
    blocks = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    line = re.compile(
        r"(?P<pin>[a-z0-9._-]+==\S+)( ; (?P<only>[^-]+?))?(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)"
    )
    found = [line.fullmatch(block) for block in blocks]
    assert all(found), [block for block, one in zip(blocks, found, strict=True) if not one]
    pins = {plain(pin) for pin in (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").split()}
    assert not [one["pin"] for one in found if one and plain(one["pin"]) not in pins and not one["only"]]


def test_everything_that_kvwatch_needs_has_its_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, wanted in (
        ("requirements", project["project"]["dependencies"]),
        ("build", project["build-system"]["requires"]),
    ):
        text = plain((ROOT / ".ci" / f"{name}.txt").read_text(encoding="utf-8"))
        missing = [one for one in wanted if f"{plain(re.split('[<>=]', one)[0])}==" not in text]
        assert not missing, f"{missing}: run `make hashes`"


def test_the_final_stage_has_no_tools_to_build_with(stages: list[Stage]) -> None:
    builder, final = stages
    assert not [run for run in final.all("RUN") if BUILD_TOOLS.search(run)]
    assert "venv --without-pip" in builder.one("RUN")
    assert "site-packages/*" in final.one("RUN"), "the base image's own pip stays"


def test_runs_as_a_user_without_rights_given_as_a_number(final: Stage) -> None:
    # Kubernetes' runAsNonRoot can only judge a number.
    assert final.one("USER") == "65532:65532"
    instructions = [instruction for instruction, _ in final.steps]
    assert "RUN" not in instructions[instructions.index("USER") :]


def test_needs_no_writable_file_system(stages: list[Stage], environment: dict[str, str]) -> None:
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "compileall" in stages[0].one("RUN")
    assert not stages[-1].all("VOLUME")


def test_exposes_the_default_port(final: Stage, port: int) -> None:
    assert final.one("EXPOSE") == str(port)


def test_sets_only_settings_that_exist(environment: dict[str, str]) -> None:
    ours = {name.removeprefix("KVWATCH_").lower() for name in environment if name.startswith("KVWATCH_")}
    assert ours <= set(Settings.model_fields)


def test_starts_the_sidecar_and_passes_signals_on(final: Stage) -> None:
    # The exec form: no shell between the engine's SIGTERM and kvwatch.
    assert json.loads(final.one("ENTRYPOINT")) == ["kvwatch"]
    assert json.loads(final.one("CMD")) == ["run"]


def test_says_what_it_is(final: Stage) -> None:
    labels = dict(assignment.split("=", 1) for rest in final.all("LABEL") for assignment in shlex.split(rest))
    assert labels["org.opencontainers.image.title"] == "kvwatch"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.description"]


def test_only_what_the_build_needs_is_sent_to_the_engine() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert next(rule for rule in rules if rule and not rule.startswith("#")) == "*"
    for needed in re.findall(r"^!(\S+)$", "\n".join(rules), re.MULTILINE):
        assert (ROOT / needed).exists(), f".dockerignore lets {needed} through, which is not there"


def plain(name: str) -> str:
    return re.sub(r"[-_]+", "-", name).lower()


def health_check(final: Stage) -> list[str]:
    options, _, command = final.one("HEALTHCHECK").partition("CMD ")
    limit = re.search(r"--timeout=(\d+)s", options)
    assert limit
    assert float(limit[1]) >= healthcheck.TIMEOUT_S + 1, (
        "what takes too long should be told by kvwatch itself"
    )
    words = json.loads(command)
    assert words == ["python", "-m", "kvwatch.healthcheck"]
    return [sys.executable, *words[1:]]


def checked(final: Stage, **environment: str) -> tuple[int, str]:
    """Exit code and output of the image's health check, with nothing in its environment but this."""
    command = health_check(final)
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.returncode, done.stdout.strip()


@contextmanager
def answering(status: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[int]:
    """A server that answers ``/healthz`` so; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, 0), Answer) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 1), (503, 1)])
def test_the_health_check_tells_well_from_ill_and_asks_no_proxy(final: Stage, status: int, code: int) -> None:
    with answering(status) as port:
        told = checked(final, KVWATCH_PORT=str(port), http_proxy="http://127.0.0.1:1")
    where = f"http://127.0.0.1:{port}/healthz"
    assert told == (
        code,
        f"{where} is healthy" if code == 0 else f"{where} answers with HTTP status {status}",
    )


def test_the_health_check_takes_the_port_from_the_settings_file(final: Stage, tmp_path: Path) -> None:
    config = tmp_path / "kvwatch.toml"
    with answering(200) as port:
        config.write_text(f"port = {port}\n")
        assert checked(final, KVWATCH_CONFIG=str(config))[0] == 0


@pytest.mark.parametrize(
    ("told", "asked"),
    [("127.0.0.2", "127.0.0.2"), ("::1", "::1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")],  # noqa: S104
)
def test_the_health_check_asks_where_kvwatch_listens(final: Stage, told: str, asked: str) -> None:
    """At a certain address there, and loopback of who listens everywhere; on a machine without IPv6 it says so."""
    shown = f"[{asked}]" if ":" in asked else asked
    code, said = checked(final, KVWATCH_HOST=told, KVWATCH_PORT="1")
    assert (code, f"http://{shown}:1/healthz" in said) == (1, True)
    if ":" not in asked or has_ipv6():
        with answering(200, host=asked) as port:
            assert checked(final, KVWATCH_HOST=told, KVWATCH_PORT=str(port))[0] == 0


def test_the_health_check_speaks_tls_where_kvwatch_does(final: Stage, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=kvwatch.example", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*make, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    told = {"KVWATCH_TLS_CERT": str(cert), "KVWATCH_TLS_KEY": str(key)}
    with answering(200, context) as port:
        code, line = checked(final, KVWATCH_PORT=str(port), **told)
    assert (code, line) == (0, f"https://127.0.0.1:{port}/healthz is healthy")


def test_the_health_check_bears_what_kubernetes_sets_for_a_service(final: Stage, port: int) -> None:
    code, line = checked(final, KVWATCH_PORT="tcp://10.0.0.1:1234")
    assert f"http://127.0.0.1:{port}/healthz" in line
    assert code == (0 if "is healthy" in line else 1)


def test_the_health_check_fails_where_nobody_listens(final: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, never listening
        code, line = checked(final, KVWATCH_PORT=str(taken.getsockname()[1]))
    assert code == 1
    assert "does not answer: " in line
    assert "refused" in line


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"KVWATCH_PORT": "0"}, "port 0"),
        ({"KVWATCH_PORT": "many"}, "the settings can't be used: KVWATCH_PORT"),
    ],
)
def test_the_health_check_says_why_it_can_not_ask(
    final: Stage, environment: dict[str, str], why: str
) -> None:
    code, line = checked(final, **environment)
    assert code == 1
    assert why in line
