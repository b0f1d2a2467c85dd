"""The image's promises, read out of the Dockerfile: no engine is needed to hold them."""

import json
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kvwatch.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
BUILD_TOOLS = re.compile(r"\b(gcc|g\+\+|make|build-essential|apt-get|apk|pip3? install|curl|wget|git)\b")


@dataclass
class Stage:
    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for found, rest in self.steps if found == instruction]

    def one(self, instruction: str) -> str:
        (rest,) = self.all(instruction)
        return rest


def parse(text: str) -> list[Stage]:
    """The stages with their instructions, continued lines joined and comments gone."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(Stage(image, name))
        elif stages:
            stages[-1].steps.append((instruction, rest))
    return stages


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def final(stages: list[Stage]) -> Stage:
    return stages[-1]


@pytest.fixture(scope="module")
def environment(final: Stage) -> dict[str, str]:
    return dict(assignment.split("=", 1) for rest in final.all("ENV") for assignment in shlex.split(rest))


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


def test_installs_the_pinned_versions(stages: list[Stage]) -> None:
    assert "PIP_CONSTRAINT=/src/.ci/constraints.txt" in stages[0].one("ENV")


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


def health_check(final: Stage) -> list[str]:
    options, _, command = final.one("HEALTHCHECK").partition("CMD ")
    assert "--timeout=" in options
    words = json.loads(command)
    assert words[:2] == ["python", "-c"]
    assert all(isinstance(word, str) for word in words)
    return list(words)


def test_the_health_check_is_python_that_asks_the_default_port(final: Stage, port: int) -> None:
    code = health_check(final)[2]
    compile(code, "HEALTHCHECK", "exec")
    assert f"os.environ.get('KVWATCH_PORT') or {port}" in code
    assert "'127.0.0.1'" in code
    assert "'/healthz'" in code


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_tells_well_from_ill(final: Stage, status: int, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        environment = {"KVWATCH_PORT": str(server.server_port), "http_proxy": "http://127.0.0.1:1"}
        done = subprocess.run([sys.executable, *health_check(final)[1:]], env=environment, check=False)
        server.shutdown()
        thread.join()
    assert done.returncode == code


def test_the_health_check_fails_where_nobody_listens(final: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, never listening
        environment = {"KVWATCH_PORT": str(taken.getsockname()[1])}
        command = [sys.executable, *health_check(final)[1:]]
        done = subprocess.run(command, env=environment, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode != 0
