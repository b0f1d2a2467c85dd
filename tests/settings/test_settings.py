"""Where settings come from, which source wins, and what is said when something is wrong."""

import contextlib
import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.outcome import Scrape
from kvwatch.mixin import markdown_tables
from kvwatch.settings import Settings, SettingsError, TargetSettings, load, show
from kvwatch.settings.provenance import provenance
from kvwatch.settings.server_urls import same_server
from kvwatch.settings.sources import key
from kvwatch.settings.target_settings import with_overrides


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVWATCH_")]:
        monkeypatch.delenv(name)


def problems(**given: object) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as raised:
        load(given)
    return raised.value.problems


def test_defaults_watch_one_local_server() -> None:
    settings = load()
    (target,) = settings.targets
    assert (target.name, target.url) == ("vllm", "http://localhost:8000/metrics")
    assert settings.effective_timeout_s == pytest.approx(0.9)
    assert (settings.port, settings.interval_s, settings.max_body_bytes) == (9477, 1.0, 16 << 20)


def test_flags_come_before_environment_before_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kvwatch.toml"
    file.write_text('interval = "2s"\nport = 1\nhost = "127.0.0.1"\n[thresholds]\nkv_exhausted.share = 0.4\n')
    monkeypatch.setenv("KVWATCH_CONFIG", str(file))
    monkeypatch.setenv("KVWATCH_PORT", "2")
    monkeypatch.setenv("KVWATCH_INTERVAL", "500ms")
    settings = load({"port": "3", "thresholds": ["kv_thrashing.per_request=0.3"]})
    assert (settings.port, settings.interval_s, settings.host) == (3, 0.5, "127.0.0.1")
    assert settings.thresholds == {"kv_exhausted.share": 0.4, "kv_thrashing.per_request": 0.3}
    assert settings.origin("port") == ("flag", "--port")
    assert settings.origin("interval_s") == ("env", "KVWATCH_INTERVAL")
    assert settings.origin("host") == ("file", f"{file}: host")
    assert settings.origin("thresholds", "kv_exhausted.share")[0] == "file"
    assert settings.origin("duty_cycle") == ("default", "")


@pytest.mark.parametrize(
    ("written", "name", "url"),
    [
        ("http://gpu1:8000/metrics", "gpu1:8000", "http://gpu1:8000/metrics"),
        ("gpu1:8000", "gpu1:8000", "http://gpu1:8000/metrics"),
        ("a=https://gpu1", "a", "https://gpu1/metrics"),
        ("a=gpu1:8000/", "a", "http://gpu1:8000/metrics"),
        ("a=http://gpu1:8000/prom?x=1", "a", "http://gpu1:8000/prom?x=1"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000/metrics"),
        ('[{"name": "b", "url": "gpu1"}]', "b", "http://gpu1/metrics"),
        ('{"url": "gpu1", "max_num_seqs": 4}', "gpu1", "http://gpu1/metrics"),
    ],
)
def test_targets_are_written_as_people_write_them(written: str, name: str, url: str) -> None:
    (target,) = load({"targets": written}).targets
    assert (target.name, target.url) == (name, url)


def test_several_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWATCH_TARGETS", "a=localhost:8000, b=localhost:8001")
    assert [target.name for target in load().targets] == ["a", "b"]


def test_targets_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('[[targets]]\nname = "a"\nurl = "localhost:8000"\ntoken = "geheim"\nmax_num_seqs = 64\n')
    settings = load({"config": str(file)})
    (target,) = settings.targets
    assert target.token is not None
    assert target.token.get_secret_value() == "geheim"
    assert settings.policy(target).max_num_seqs == 64
    assert "geheim" not in show(settings)
    assert "geheim" not in repr(settings)


def test_everything_wrong_is_said_at_once_as_the_user_spelled_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "k.toml"
    file.write_text('intervall = 3\nlog_level = "loud"\n')
    monkeypatch.setenv("KVWATCH_DUTY_CYCLE", "2")
    monkeypatch.setenv("KVWATCH_CONFIG", str(file))
    found = problems(
        targets="a=http://me:geheim@gpu,b=ftp://gpu",
        port="x",
        disabled="kv_trashing",
        thresholds=["kv_exhausted.shar=1", "regime.full_usage=2"],
        aliases=["kv_cache_usage=new", "kv_cache_usage_ratio=num_requests_running"],
    )
    said = "\n".join(found)
    assert "geheim" not in said
    for part in (
        f"{file}: intervall: unknown setting; did you mean interval?",
        f"{file}: log_level loud: must be 'debug'",
        "KVWATCH_DUTY_CYCLE 2: must be above 0 and at most 0.5",
        "--targets, target 1 url http://***@gpu: a URL must not contain a user name",
        "--targets, target 2 url ftp://gpu: unknown scheme ftp; use http:// or https://",
        "--port x: must be a whole number",
        "--disable: kv_trashing is not a symptom; did you mean kv_thrashing?",
        "--threshold: threshold 'kv_exhausted.shar' is unknown; did you mean kv_exhausted.share?",
        "--threshold: threshold regime.full_usage=2 is outside 0 to 1",
        "--alias: kv_cache_usage is not a signal; did you mean kv_cache_usage_ratio?",
        "--alias: num_requests_running is already read as requests_running",
    ):
        assert part in said
    assert len(found) == 11
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"interval_s": "0"}, "--interval 0: must be from 0.05 to 3600 seconds"),
        (
            {"interval_s": "soon"},
            "--interval soon: not a duration; write seconds, or for example 30s, 5m, 1h",
        ),
        ({"timeout_s": "1"}, "--timeout 1: must be below the interval of 1 s"),
        (
            {"interval_s": "5", "max_interval_s": "2"},
            "--max-interval 2: must not be below the interval of 5 s; raise it, or shorten the interval",
        ),
        ({"max_body_bytes": "huge"}, "--max-body-bytes huge: not a size; write bytes, or for example 16MiB"),
        ({"history_s": 10}, "--history 10: must be from 300"),
        ({"port": 70_000}, "--port 70000: must be from 0 to 65535"),
        ({"targets": "a=gpu1,a=gpu2"}, "--targets: two targets are named a; give each its own name"),
        ({"targets": ""}, "--targets: no target; name at least one"),
        (
            {"targets": '[{"url": "x", "tokn": "geheim"}]'},
            "target 1 tokn: unknown field; did you mean",
        ),
        ({"targets": '[{"url": "x", "token": "geheim"'}, "--targets: invalid JSON: "),
        (
            {"tls_cert": __file__},
            "--tls-key (KVWATCH_TLS_KEY): tls_cert and tls_key belong together; set both or none",
        ),
        ({"api_token_file": "/not/there"}, "--api-token-file /not/there: can't read this file: No such file"),
        ({"config": "/not/there.toml"}, "/not/there.toml: can't read the settings file: No such file"),
        ({"thresholds": ["x"]}, "--threshold: 'x' is not of the form name=value"),
        (
            {"thresholds": ["kv_exhausted.share=lots"]},
            "--threshold: threshold kv_exhausted.share=lots must be a number",
        ),
        ({"spellings": ["a b"]}, "--spelling: 'a b' is not a prefix"),
    ],
)
def test_each_mistake_has_its_remedy(given: dict[str, object], message: str) -> None:
    found = problems(**given)
    assert len(found) == 1
    assert message in found[0]
    assert "geheim" not in found[0]


def test_a_long_interval_stretches_the_limits_that_nobody_set() -> None:
    settings = load({"interval_s": "1m"})
    assert (settings.max_interval_s, settings.backoff_max_s, settings.effective_timeout_s) == (60, 60, 10)
    assert "max_interval = 60  # default: raised to the interval" in show(settings)
    assert "backoff_max = 10  # default\n" in show(load({"interval_s": "10s"}))
    assert provenance(settings)["backoff_max"]["as"] == "raised to the interval"
    assert problems(interval_s="1m", max_interval_s="15") == (
        "--max-interval 15: must not be below the interval of 60 s; raise it, or shorten the interval",
    )


def test_what_kubernetes_sets_for_a_service_named_kvwatch_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "KVWATCH_PORT": "tcp://10.0.0.7:9477",
        "KVWATCH_SERVICE_HOST": "10.0.0.7",
        "KVWATCH_SERVICE_PORT": "9477",
        "KVWATCH_SERVICE_PORT_HTTP": "9477",
        "KVWATCH_PORT_9477_TCP": "tcp://10.0.0.7:9477",
        "KVWATCH_PORT_9477_TCP_ADDR": "10.0.0.7",
        "KVWATCH_VLLM_PORT": "tcp://10.0.0.8:9477",
        "KVWATCH_DEBUG": "1",
        "KVWATCH_HOST": "",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert (settings.port, settings.host, settings.notes) == (9477, "0.0.0.0", ())  # noqa: S104


def test_a_variable_that_is_no_setting_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWATCH_INTERVL", "3")
    monkeypatch.setenv("KVWATCH_TYPO", "3")
    assert load().notes == (
        "KVWATCH_INTERVL is not a setting and is ignored; did you mean KVWATCH_INTERVAL?",
        "KVWATCH_TYPO is not a setting and is ignored",
    )


def test_one_setting_under_two_names_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWATCH_INTERVAL", "3")
    monkeypatch.setenv("KVWATCH_INTERVAL_S", "4")
    assert problems() == ("KVWATCH_INTERVAL_S: set twice, also as KVWATCH_INTERVAL; keep one",)


@pytest.mark.parametrize("spelling", ["sglang", "sglang:"])
def test_an_alias_may_have_a_prefix_of_the_operators_own(spelling: str) -> None:
    """A page of another server is judged by the full names of its metrics."""
    names = {
        "kv_cache_usage_ratio": "sglang:token_usage",
        "requests_running": "sglang:num_running_reqs",
        "requests_waiting": "sglang:num_queue_reqs",
        "generation_tokens_total": "sglang:gen_tokens_total",
        "prompt_tokens_total": "sglang:prompt_tokens_total",
    }
    settings = load({"aliases": json.dumps(names), "spellings": spelling})
    state = initial("sglang", settings.policy(settings.targets[0]))
    labels = '{engine="0",model_name="m"}'
    for second in range(180):
        numbers = (0.99, 8, 20, 100 * second, 100 * second)
        lines = [f"{name}{labels} {number}" for name, number in zip(names.values(), numbers, strict=True)]
        state, _ = advance(state, Scrape("\n".join([*lines, ""]).encode(), float(second)), float(second))
    (engine,) = state.engines.values()
    assert engine.regime is Regime.KV_LIMITED
    assert engine.symptoms["kv_exhausted"].stage is Stage.FIRING


def test_an_alias_with_a_prefix_that_is_not_read_is_a_mistake() -> None:
    assert problems(aliases="requests_running=sglang:num_running_reqs") == (
        "--alias: the prefix of 'sglang:num_running_reqs' is not read: add 'sglang:' to spellings",
    )


def test_the_policy_is_what_the_judgement_takes() -> None:
    settings = load(
        {
            "aliases": "kv_cache_usage_ratio=ray_vllm:kv_usage_new,requests_waiting_by_reason=waiting_why",
            "spellings": "ray_vllm:",
            "disabled": "kv_near_full",
            "thresholds": '{"kv_exhausted.share": 0.4}',
        }
    )
    policy = settings.policy(settings.targets[0])
    assert initial("vllm", policy).limits["kv_exhausted.share"] == 0.4
    assert policy.disabled == {"kv_near_full"}
    for name in ("vllm:kv_usage_new", "ray_vllm:kv_usage_new", "vllm_kv_usage_new"):
        role = policy.vocabulary.role(name)
        assert role is not None
        assert role.signal.name == "kv_cache_usage_ratio"
    role = policy.vocabulary.role("vllm:waiting_why")
    assert role is not None
    assert role.aliases[0][1].label == "reason"


def test_a_token_comes_from_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("geheim\n")
    settings = load({"api_token_file": str(file)})
    assert settings.api_token is not None
    assert settings.api_token.get_secret_value() == "geheim"
    assert "geheim" not in show(settings) + repr(settings)


def test_a_target_takes_its_token_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("geheim\n")
    (target,) = load({"targets": f'{{"url": "gpu1", "token_file": "{file}"}}'}).targets
    assert target.token is not None
    assert target.token.get_secret_value() == "geheim"
    file.write_text("")
    assert f"the file {file} is empty" in problems(api_token_file=str(file))[0]


def test_what_is_shown_is_a_settings_file_that_says_the_same(tmp_path: Path) -> None:
    settings = load({"interval_s": "3s", "thresholds": "kv_exhausted.share=0.4", "targets": "a=gpu1,b=gpu2"})
    text = show(settings)
    assert "interval = 3  # flag: --interval" in text
    assert "port = 9477  # default" in text
    tomllib.loads(text)
    file = tmp_path / "shown.toml"
    file.write_text(text)
    assert load({"config": str(file)}).model_dump(exclude={"config"}) == settings.model_dump(
        exclude={"config"}
    )


def test_can_be_made_in_code() -> None:
    settings = Settings(targets=[TargetSettings(url="localhost:1", name="x")], interval_s=0.1, port=0)
    assert settings.targets[0].url == "http://localhost:1/metrics"


def test_settings_made_in_code_are_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWATCH_INTERVAL", "rubbish")
    monkeypatch.setenv("KVWATCH_HISTORY", "20m")
    assert Settings(port=0).history_s == 600


def test_every_entry_that_is_wrong_is_told_in_one_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "k.toml"
    file.write_text('thresholds = ["kv_near_full.share"]\n')
    monkeypatch.setenv("KVWATCH_ALIASES", "nowhere")
    found = problems(
        config=str(file),
        thresholds="foo=1,kv_thrashing.per_request=x,oops",
        disabled=["bogus", 7],
        aliases="requests_runing=a,requests_waiting=b!,kv_cache_usage_ratio",
        targets=['[{"url"', "ftp://gpu", "a=gpu1,a=gpu2", "b=gpu3"],
        spellings=["a b", "c{"],
    )
    said = "\n".join(found)
    for part in (
        f"{file}: thresholds: 'kv_near_full.share' is not of the form name=value",
        "KVWATCH_ALIASES: 'nowhere' is not of the form name=value",
        "--threshold: 'oops' is not of the form name=value",
        "--threshold: threshold 'foo' is unknown; the nearest are ",
        "--threshold: threshold kv_thrashing.per_request=x must be a number",
        "--disable: bogus is not a symptom; the nearest are ",
        "--disable: 7 is not a symptom",
        "--alias: requests_runing is not a signal; did you mean requests_running?",
        "--alias: 'b!' is not a metric name",
        "--alias: 'kv_cache_usage_ratio' is not of the form name=value",
        "--targets: invalid JSON: ",
        "--targets, target 1 url ftp://gpu: unknown scheme ftp; use http:// or https://",
        "--targets: two targets are named a",
        "--spelling: 'a b' is not a prefix of metric names",
        "--spelling: 'c{' is not a prefix of metric names",
    ):
        assert part in said
    assert len(found) == 15


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"thresholds": "kv_exhausted.fraction=1"}, "kv_exhausted.f"),
        ({"thresholds": "thrash=1"}, "kv_thrashing."),
        ({"aliases": "usage=x"}, "kv_cache_usage_ratio"),
        ({"disabled": "thrash"}, "kv_thrashing"),
    ],
)
def test_an_unknown_name_brings_those_that_resemble_it(given: dict[str, str], near: str) -> None:
    (found,) = problems(**given)
    assert near in found.partition(";")[2]


def test_lists_are_separated_by_commas_or_spaces() -> None:
    settings = load(
        {
            "spellings": "a: b_, c.",
            "disabled": "kv_near_full kv_exhausted",
            "thresholds": "kv_exhausted.share = 0.4 kv_exhausted.for=3",
            "aliases": "kv_cache_usage_ratio=a, requests_running=b",
        }
    )
    assert settings.spellings == ["a:", "b_", "c."]
    assert settings.disabled == ["kv_near_full", "kv_exhausted"]
    assert settings.thresholds == {"kv_exhausted.share": 0.4, "kv_exhausted.for": 3}
    assert settings.aliases == {"kv_cache_usage_ratio": "a", "requests_running": "b"}


def test_what_is_wrong_with_settings_that_are_not_used_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "k.toml"
    file.write_text('prot = 3\nhistory = "20m"\nlog_level = "loud"\n[thresholds]\nkv_exhausted.share = 0.4\n')
    monkeypatch.setenv("KVWATCH_PORT", "x")
    monkeypatch.setenv("KVWATCH_INTERVAL", "0")
    used = {"config", "thresholds", "history_s"}
    settings = load({"config": str(file), "thresholds": "kv_exhausted.for=1"}, used=used)
    assert settings.thresholds == {"kv_exhausted.share": 0.4, "kv_exhausted.for": 1}
    assert (settings.history_s, settings.interval_s) == (1200, 1)
    (note,) = settings.notes
    for part in ("KVWATCH_PORT x", "KVWATCH_INTERVAL 0", f"{file}: prot: unknown setting", "log_level loud"):
        assert part in note
    with pytest.raises(SettingsError) as raised:
        load({"config": str(file)}, used=used | {"port"})
    assert [problem.partition(":")[0] for problem in raised.value.problems] == ["KVWATCH_PORT x"]
    monkeypatch.delenv("KVWATCH_PORT")
    with pytest.raises(SettingsError, match="--port y"):
        load({"port": "y"}, used=used)


def test_the_table_of_settings_says_what_may_be_given_and_no_flag_for_secrets() -> None:
    rows = {
        cells[2].strip("` "): [cell.strip() for cell in cells]
        for line in markdown_tables.settings().splitlines()
        if len(cells := line.split("|")) == 6
    }
    assert rows["KVWATCH_API_TOKEN"][1] == ""
    assert rows["KVWATCH_API_TOKEN_FILE"][1] == "`--api-token-file`"
    assert rows["KVWATCH_LOG_FORMAT"][4].endswith(": `text`, `json`")
    assert rows["KVWATCH_NARROW"][4].endswith(": `auto`, `never`")
    assert rows["KVWATCH_MAX_INTERVAL"][4].endswith("at least the interval")
    assert "default: host:port of the URL; vllm if no target is set" in markdown_tables.settings()


def test_every_setting_says_what_it_is_and_in_which_unit() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if name.endswith("_s"):
            assert "second" in field.description, name


def test_a_target_keeps_what_was_said_of_it_where_one_field_is_overridden(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("geheim\n")
    (target,) = load({"targets": [{"url": "gpu1", "token_file": str(file), "insecure_tls": True}]}).targets
    (again,) = load({"targets": [with_overrides(target, {"max_num_seqs": 8})]}).targets
    assert again == target.model_copy(update={"max_num_seqs": 8})
    other = tmp_path / "other"
    other.write_text("anders")
    (held,) = load({"targets": [{"url": "gpu1", "token": "geheim"}]}).targets
    (again,) = load({"targets": [with_overrides(held, {"token_file": other})]}).targets
    assert again.token is not None
    assert again.token.get_secret_value() == "anders"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("gpu1:8000", "http://GPU1:8000/metrics", True),
        ("http://gpu1", "gpu1:80/", True),
        ("https://gpu1:443/metrics", "https://gpu1.", True),
        ("https://gpu1", "http://gpu1", False),
        ("gpu1/metrics?x=1", "gpu1/metrics", False),
        ("gpu1/a", "gpu1/b", False),
        ("ftp://gpu1", "ftp://gpu1", False),
    ],
)
def test_what_is_the_same_server(one: str, other: str, same: bool) -> None:
    assert same_server(one, other) is same


@pytest.mark.parametrize(
    ("written", "urls"),
    [
        ("[::1]:8000", ["http://[::1]:8000/metrics"]),
        ("[fe80::1%25eth0]:8000 [::2]", ["http://[fe80::1%25eth0]:8000/metrics", "http://[::2]/metrics"]),
        ('["a", "b"]', ["http://a/metrics", "http://b/metrics"]),
    ],
)
def test_addresses_of_ipv6_are_not_json(
    monkeypatch: pytest.MonkeyPatch, written: str, urls: list[str]
) -> None:
    monkeypatch.setenv("KVWATCH_TARGETS", written)
    assert [target.url for target in load().targets] == urls


@pytest.mark.parametrize(
    "written",
    [
        None,
        "a=gpu1:8000,https://gpu_2?x=1",
        "http://[fe80::1%25eth0]:8000",
        "http://bücher.example/ä",
        "http://gpu~1!",
        "http://" + "a." * 140 + "example",
    ],
)
def test_what_is_shown_gives_the_same_settings(tmp_path: Path, written: str | None) -> None:
    given = {} if written is None else {"targets": written}
    strange = tmp_path / 'a\x7f\n"ü'
    strange.write_text("x")
    more = {
        "thresholds": "kv_thrashing.per_request=0.3",
        "aliases": "kv_cache_usage_ratio=x",
        "interval_s": "30s",
    }
    for settings in (load(given), load(given | more | {"tls_cert": strange, "tls_key": strange})):
        file = tmp_path / "shown.toml"
        file.write_text(show(settings), encoding="utf-8")
        assert load({"config": file}).model_dump() == settings.model_dump() | {"config": file}


def test_a_shown_secret_is_not_taken_for_one(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("geheim")
    held = load({"targets": [{"url": "gpu1", "token": "geheim"}], "api_token_file": token})
    filed = load({"targets": [{"url": "gpu1", "token_file": token}]})
    file = tmp_path / "shown.toml"
    file.write_text(show(held))
    assert load({"config": file}).targets[0].token is None
    assert load({"config": file}).api_token == held.api_token
    file.write_text(show(filed))
    assert load({"config": file}).targets == filed.targets
    assert "geheim" not in show(held) + show(filed)


def test_too_large_is_told_as_such() -> None:
    (said,) = problems(full_interval_s=2e9)
    assert "must be above 0 and at most 1000000000" in said


def test_problems_hold_no_secrets() -> None:
    assert "geheim" not in str(SettingsError(["http://a?token=geheim", "b: //me:geheim@x"]))


# -- GPUs ----------------------------------------------------------------------------------------------------------


def test_gpu_data_is_looked_for_unless_said_otherwise() -> None:
    settings = load()
    assert (settings.gpu, settings.gpu_url, settings.gpu_interval_s) == ("auto", None, 5.0)
    assert settings.policy(settings.targets[0]).gpus == ()


def test_gpu_settings_are_written_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWATCH_GPU_URL", "gpu1:9400")
    monkeypatch.setenv("KVWATCH_GPU_INTERVAL", "10s")
    settings = load({"gpu": "dcgm"})
    assert (settings.gpu_url, settings.gpu_interval_s) == ("http://gpu1:9400/metrics", 10.0)
    assert 'gpu_url = "http://gpu1:9400/metrics"  # env: KVWATCH_GPU_URL' in show(settings)
    assert load({"gpu": "off"}).gpu_url == "http://gpu1:9400/metrics", "what is off may stay written"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu": "cuda"}, "--gpu cuda: must be 'auto', 'dcgm', 'nvml' or 'off'"),
        ({"gpu": "nvml", "gpu_url": "gpu1:9400"}, "--gpu-url gpu1:9400: set together with gpu = nvml"),
        ({"gpu_url": "ftp://gpu1"}, "--gpu-url ftp://gpu1: unknown scheme ftp"),
        ({"gpu_url": "http://me:geheim@gpu1:9400"}, "a URL must not contain a user name or password"),
        ({"gpu_interval_s": "0.1"}, "--gpu-interval 0.1: must be from 0.5 to 3600 seconds"),
    ],
)
def test_wrong_gpu_settings_are_one_line_each(given: dict[str, str], told: str) -> None:
    (problem,) = problems(**given)
    assert told in problem
    assert "geheim" not in problem


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ('"0, 1/7"', ("0", "1/7")),
        ('[0, 1, "0"]', ("0", "1")),
        ("3", ("3",)),
        ('"GPU-58e8f5ea-13cc-013a-d88f-2bcf5ae8bc77/7"', ("GPU-58e8f5ea-13cc-013a-d88f-2bcf5ae8bc77/7",)),
        ('"MIG-4d806f22-346a-5a1d-ba01-86b505cdf485"', ("MIG-4d806f22-346a-5a1d-ba01-86b505cdf485",)),
        ('["pod:serving/chat-0", "pod:chat-1"]', ("pod:serving/chat-0", "pod:chat-1")),
    ],
)
def test_gpus_of_a_target(written: str, names: tuple[str, ...]) -> None:
    settings = load({"targets": f'{{"url": "localhost:8000", "gpus": {written}}}'})
    assert settings.policy(settings.targets[0]).gpus == names


@pytest.mark.parametrize("written", ["cuda:0", "0-3", "-1", "GPU", "pod:", "0/", "true"])
def test_a_name_that_no_gpu_has_is_told(written: str) -> None:
    (problem,) = problems(targets=f'{{"url": "localhost:8000", "gpus": "{written}"}}')
    assert f"{written!r}: not a GPU; write an index (0)" in problem


def test_what_is_no_list_of_gpus_is_told() -> None:
    for written in ("true", "{}", "1.5", "[true]"):
        (problem,) = problems(targets=f'{{"url": "localhost:8000", "gpus": {written}}}')
        assert "gpus" in problem


# -- Alertmanagers ---------------------------------------------------------------------------------------------------


def test_no_alertmanager_is_told_unless_one_is_named() -> None:
    settings = load()
    assert (settings.alertmanagers, settings.notify_repeat_s, settings.external_url) == ([], 60.0, None)
    assert load({"alertmanagers": [""]}).alertmanagers == []


@pytest.mark.parametrize(
    ("written", "name", "url"),
    [
        ("am:9093", "am:9093", "http://am:9093"),
        ("a=https://am/", "a", "https://am"),
        ("http://am:9093/prefix/", "am:9093", "http://am:9093/prefix"),
    ],
)
def test_alertmanagers_are_written_as_targets_are(written: str, name: str, url: str) -> None:
    (one,) = load({"alertmanagers": [written]}).alertmanagers
    assert (one.name, one.url) == (name, url)


def test_several_alertmanagers(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = load({"alertmanagers": ["a=am1:9093,b=am2:9093", "am3:9093"]})
    assert [one.name for one in flags.alertmanagers] == ["a", "b", "am3:9093"]
    monkeypatch.setenv("KVWATCH_ALERTMANAGER", "am4:9093")
    assert [one.url for one in load().alertmanagers] == ["http://am4:9093"]


def test_what_is_wrong_with_an_alertmanager_is_said_without_secrets() -> None:
    (user, scheme) = problems(alertmanagers=["http://u:hidden@am", "ftp://am"])
    assert user.startswith(
        "--alertmanager, Alertmanager 1 url http://***@am: a URL must not contain a user name"
    )
    assert "hidden" not in user
    assert "Alertmanager 2 url ftp://am: unknown scheme ftp" in scheme
    (twice,) = problems(alertmanagers=["a=am1", "a=am2"])
    assert "two Alertmanagers are named a" in twice
    (strange,) = problems(alertmanagers=['{"url": "am", "tokn": "hidden"}'])
    assert "unknown field; did you mean token?" in strange
    assert "hidden" not in strange
    assert "from 1 to 3600" in problems(notify_repeat_s="0.5")[0]
    assert "alerts show this one; leave it out" in problems(external_url="http://u:p@kvwatch")[0]


def test_alertmanagers_in_a_file_are_shown_without_their_tokens(tmp_path: Path) -> None:
    token, file = tmp_path / "token", tmp_path / "kvwatch.toml"
    token.write_text("hidden\n")
    file.write_text(f'[[alertmanagers]]\nurl = "am:9093/x?key=hidden"\ntoken_file = "{token}"\n')
    settings = load({"config": str(file)})
    (one,) = settings.alertmanagers
    assert one.token is not None
    assert one.token.get_secret_value() == "hidden"
    shown = show(settings)
    assert "hidden" not in shown
    assert tomllib.loads(shown)["alertmanagers"][0]["url"] == "http://am:9093/x?key=***"


# -- how kvwatch makes itself known to a server ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ('username = "u"', "username and password (or password_file) belong together"),
        ('password = "secret"', "username and password (or password_file) belong together"),
        ('username = "u"\npassword = "secret"\ntoken = "secret"', "set together with a token"),
        ('username = "a:b"\npassword = "secret"', "not a user name; write one line without a colon"),
        ('cert_file = "{cert}"', "a client certificate requires TLS"),
        ('key_file = "{cert}"', "set without cert_file"),
        ('cert_file = "/nowhere"', "can't read this file"),
    ],
)
def test_what_does_not_go_together_is_told_without_secrets(tmp_path: Path, fields: str, told: str) -> None:
    (cert := tmp_path / "cert.pem").write_text("x")
    (file := tmp_path / "kvwatch.toml").write_text(
        '[[targets]]\nurl = "http://localhost"\n' + fields.format(cert=cert)
    )
    with pytest.raises(SettingsError) as caught:
        load({"config": str(file)})
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_password_comes_from_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    (password := tmp_path / "password").write_text("hush-hush\n")
    (file := tmp_path / "kvwatch.toml").write_text(
        f'[[targets]]\nurl = "localhost"\nusername = "u"\npassword_file = "{password}"\n'
    )
    settings = load({"config": str(file)})
    (target,) = settings.targets
    assert target.password is not None
    assert target.password.get_secret_value() == "hush-hush"
    assert "hush-hush" not in show(settings) + repr(settings) + str(provenance(settings))


# -- whatever is written ---------------------------------------------------------------------------------------------

_WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["1s", "-1", "nan", "inf", "1e400", "[", "{", "a=b", "http://[::1]:1", "http://u:pw@h", "0x1", "\0"]
    ),
)
_ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*Settings.model_fields, "tragets", "x y"]), _ANYTHING, max_size=4))
@example({"disabled": [[]]})
@example({"thresholds": {"a": 10**400}})
@example({"targets": [{"url": "http://[::1"}]})
@example({"aliases": {"kv_cache_usage_ratio": 3}})
@example({"interval_s": "1e400"})
@example({"gpus": [10**30], "targets": {"gpus": [True]}})
def test_whatever_is_written_is_settings_or_lines_that_say_what_is_wrong(written: dict[str, object]) -> None:
    """No other error leaves, and what is taken can be shown and judged by."""
    written.pop("config", None)
    with contextlib.suppress(SettingsError):
        settings = load(written)
        show(settings)
        for target in settings.targets:
            settings.policy(target)


@hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@example(b"\xff")
@example(b"targets = [[[[[[[[[[[[[[[[")
@example(b"a" * 10_000 + b" = 1")
@example(b"[thresholds]\na.b.c = 1\n")
def test_no_bytes_make_a_settings_file_fail_in_any_other_way(tmp_path: Path, data: bytes) -> None:
    (file := tmp_path / "kvwatch.toml").write_bytes(data)
    with contextlib.suppress(SettingsError):
        load({"config": str(file)})


def _toml(value: object) -> str:
    """A value as TOML; what there is no word for is left out."""
    if isinstance(value, dict):
        inner = ", ".join(
            f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items() if one is not None
        )
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value if one is not None)}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf").replace("\x7f", "\\u007f")


_KEYS = [key(name) for name in Settings.model_fields if name != "config"]
_SERVER = st.dictionaries(
    st.sampled_from([key(name) for name in TargetSettings.model_fields]), _ANYTHING, max_size=5
)


@hypothesis_settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(st.sampled_from(_KEYS), _ANYTHING, max_size=5),
    st.lists(_SERVER, max_size=3),
    st.sampled_from(["targets", "alertmanagers"]),
)
@example({}, [{"token_file": []}], "targets")
@example({}, [{"ca_file": 3}], "alertmanagers")
def test_whatever_a_file_says_of_any_setting_is_settings_or_lines_that_say_what_is_wrong(
    tmp_path: Path, told: dict[str, object], servers: list[dict[str, object]], kind: str
) -> None:
    told = {name: value for name, value in told.items() if value is not None} | (
        {kind: servers} if servers else {}
    )
    text = "".join(f"{name} = {_toml(value)}\n" for name, value in told.items())
    (file := tmp_path / "kvwatch.toml").write_text(text, encoding="utf-8")
    with contextlib.suppress(SettingsError):
        show(load({"config": str(file)}))


_IN_ENVIRONMENT = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    st.binary(max_size=20).map(lambda data: os.fsdecode(data.replace(b"\0", b""))),
    st.recursive(_ANYTHING, lambda inner: st.lists(inner, max_size=2)).map(json.dumps),
    st.from_regex(r"\A[0-9]{1,20}(\.[0-9]{0,5})? ?([kmg]i?b?|ms|s|m|h|d)?\Z"),
    st.sampled_from(["[" * 100_000, "{" * 100_000, "9" * 400 + "g", "9" * 5000, "9" * 400 + "h", "1e5000"]),
    st.sampled_from(["-0", "/", "//", "\udcff"]),
)  # fmt: skip


@hypothesis_settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(_KEYS), _IN_ENVIRONMENT, min_size=1, max_size=4))
@example({"targets": "[" * 100_000})
@example({"thresholds": '{"a":' * 100_000})
@example({"max_body_bytes": "9" * 400 + "g"})
def test_whatever_the_environment_says_of_any_setting_is_settings_or_lines_that_say_what_is_wrong(
    told: dict[str, str],
) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SettingsError):
        for name, text in told.items():
            patch.setenv(f"KVWATCH_{name.upper()}", text.replace("\0", ""))
        show(load())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("x = " + "{a=" * 5000, "nested too deeply"),
        ("[thresholds." + ".".join(["b"] * 50_000) + "]\n", "nested too deeply"),
        ("port = " + "9" * 5000, "4300 digits"),
    ],
    ids=["array", "table", "keys", "digits"],
)
def test_a_file_that_its_reader_gives_up_is_said_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    (file := tmp_path / "kvwatch.toml").write_text(text, encoding="utf-8")
    (problem,) = problems(config=str(file))
    assert problem.startswith(f"{file}: not TOML")
    assert said in problem


def test_a_number_that_can_not_be_written_is_out_of_range(tmp_path: Path) -> None:
    (file := tmp_path / "kvwatch.toml").write_text(f"port = 0x{'f' * 5000}", encoding="utf-8")
    assert problems(config=str(file)) == (f"{file}: port: must be from 0 to 65535",)


def test_a_file_with_a_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    """As editors on Windows begin it."""
    (file := tmp_path / "kvwatch.toml").write_text("port = 1234\n", encoding="utf-8-sig")
    assert load({"config": str(file)}).port == 1234
