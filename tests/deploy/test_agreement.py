"""What manifests, the compose file and the README name is there: settings, flags, ports, paths, metrics."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import yaml

from kvwatch.cli import _parsers
from kvwatch.settings import Settings
from kvwatch.settings.sources import PREFIX, SECRET, key
from tests.deploy.manifests import KUBERNETES, ROOT, everything, of_kind, pods, sidecar

DEPLOY = ROOT / "deploy"
PORT = Settings.model_fields["port"].default
VARIABLES = {PREFIX + key(name).upper() for name in Settings.model_fields}
#: Not for kvwatch: what Kubernetes sets, and what stands for any variable.
FOREIGN = {"KVWATCH_SERVICE_HOST", "KVWATCH_"}
TEXTS = [
    ROOT / "README.md",
    ROOT / "Dockerfile",
    *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
]


def commands() -> dict[str, set[str]]:
    """Every command with the flags that it has."""
    return {name: {*command._option_string_actions} for name, command in _parsers(None)[1].items()}


def unknown_variables(text: str) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}[A-Z0-9_]*\b", text)) - VARIABLES - FOREIGN


def unknown_flags(text: str) -> set[str]:
    """Flags of kvwatch in a text's commands that the command named does not have."""
    known = commands()
    wrong = set()
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        for command, rest in re.findall(r"\bkvwatch (\w+)([^`#|;]*)", line):
            given = set(re.findall(r"(?<=\s)--[a-z-]+", rest))
            wrong |= {f"{command} {flag}" for flag in given - known.get(command, given)}
    return wrong


def test_every_variable_that_is_named_is_a_setting() -> None:
    wrong = {
        str(path.relative_to(ROOT)): unknown_variables(path.read_text(encoding="utf-8")) for path in TEXTS
    }
    assert not {name: found for name, found in wrong.items() if found}
    assert unknown_variables("KVWATCH_TARGETS, KVWATCH_TARGTES") == {"KVWATCH_TARGTES"}


def test_every_flag_that_is_named_is_one_of_the_command() -> None:
    wrong = {str(path.relative_to(ROOT)): unknown_flags(path.read_text(encoding="utf-8")) for path in TEXTS}
    assert not {name: found for name, found in wrong.items() if found}
    assert unknown_flags("kvwatch run --targets a --treshold b=1") == {"run --treshold"}


def test_the_compose_files_command_is_one_of_kvwatch() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for words in (
        one["command"] for one in services.values() if one["image"] == "kvwatch" and "command" in one
    ):
        assert callable(_parsers(None)[0].parse_args(words).main)


def test_no_secret_is_written_into_a_manifest() -> None:
    """Tokens come from files or Secrets: no variable that holds one is given a value."""
    secret = {PREFIX + key(name).upper() for name in SECRET if name in Settings.model_fields}
    assert secret == {"KVWATCH_API_TOKEN"}
    for path in TEXTS[2:]:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in secret if re.search(rf"{name}\b\W+value:", text)], path


def test_ports_and_paths_agree() -> None:
    """The port that kvwatch serves on by default, everywhere; the path that it serves metrics on."""
    documents = everything()
    kvwatch = sidecar(pods(documents)[0])
    (port,) = kvwatch["ports"]
    assert port == {"name": "kvwatch", "containerPort": PORT}
    assert kvwatch["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": PORT}
    (service,) = [one for one in of_kind(documents, "Service") if one["metadata"]["name"] == "kvwatch"]
    # Up to 1.31 a Service does not find the name of a native sidecar's port.
    assert [(one["port"], one["targetPort"]) for one in service["spec"]["ports"]] == [(PORT, PORT)]
    (endpoint,) = of_kind(documents, "PodMonitor")[0]["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    annotations = (KUBERNETES / "components" / "scrape-annotations" / "annotations.yaml").read_text(
        encoding="utf-8"
    )
    assert f'prometheus.io/port: "{PORT}"\n' in annotations
    assert "prometheus.io/path: /metrics\n" in annotations
    assert f"EXPOSE {PORT}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_kvwatch_watches_the_port_that_the_example_serves_on() -> None:
    (pod,) = pods(everything())
    (vllm,) = pod["spec"]["containers"]
    served = next(one["containerPort"] for one in vllm["ports"])
    assert f"--port={served}" in vllm["args"]
    environment = {one["name"]: one.get("value", "") for one in sidecar(pod)["env"]}
    assert environment["KVWATCH_TARGETS"].endswith(f"=http://localhost:{served}")


def test_scaling_asks_for_what_is_recorded() -> None:
    """Both ways for the same number and the same replicas, of the model and namespace that the example has."""
    documents = everything()
    (keda,) = of_kind(documents, "ScaledObject")
    (trigger,) = keda["spec"]["triggers"]
    (hpa,) = of_kind(documents, "HorizontalPodAutoscaler")
    query = trigger["metadata"]["query"]
    promql_parser.parse(query)
    (name,) = re.findall(r"model:\w+:\w+", query)
    (rules,) = of_kind(documents, "PrometheusRule")
    assert name in {rule.get("record") for group in rules["spec"]["groups"] for rule in group["rules"]}
    (rule,) = yaml.safe_load((KUBERNETES / "autoscaling" / "prometheus-adapter" / "values.yaml").read_text())[
        "rules"
    ]["external"]
    assert f'__name__="{name}"' in rule["seriesQuery"]
    (metric,) = hpa["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert float(trigger["metadata"]["threshold"]) * 1000 == float(
        metric["external"]["target"]["averageValue"].removesuffix("m")
    )
    assert keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    (deployment,) = of_kind(documents, "Deployment")
    for scaled in (keda, hpa):
        assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    model = metric["external"]["metric"]["selector"]["matchLabels"]["model_name"]
    (vllm,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--served-model-name={model}" in vllm["args"]
    assert f'namespace="{deployment["metadata"]["namespace"]}",model_name="{model}"' in query


def test_absent_is_never_zero_for_the_scaler() -> None:
    """No answer is an error that changes nothing, and there is no fixed number of replicas to fall back to."""
    (keda,) = of_kind(everything(), "ScaledObject")
    assert keda["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    assert "fallback" not in keda["spec"]


def test_the_images_tag_is_the_version() -> None:
    version = re.search(
        r'"(.+)"', (ROOT / "kvwatch" / "__init__.py").read_text(encoding="utf-8").split("__version__")[1]
    )
    assert version
    assert sidecar(pods(everything())[0])["image"].endswith(f":{version[1]}")


def test_the_readme_names_what_is_there() -> None:
    """Every path below deploy/ that a README names."""
    for readme in (ROOT / "README.md", *DEPLOY.rglob("README.md")):
        text = readme.read_text(encoding="utf-8")
        for named in re.findall(r"\bdeploy/[\w./-]*\w", text):
            assert (ROOT / named).exists(), f"{readme.relative_to(ROOT)}: {named}"


def test_every_component_is_told_of() -> None:
    text = Path(KUBERNETES / "README.md").read_text(encoding="utf-8")
    for path in (KUBERNETES / "components").iterdir():
        assert f"`components/{path.name}`" in text
