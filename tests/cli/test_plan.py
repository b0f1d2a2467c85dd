"""`plan`: the command with its words, tables, errors and plots, and a running server asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Kvwatch = Callable[..., CompletedProcess[str]]
Serve = Callable[..., str]
MODELS = Path(__file__).parents[1] / "capacity" / "models"
LLAMA = MODELS / "llama-3.1-8b.json"
NUMBERS = ("--layers", 32, "--kv-heads", 8, "--head-dim", 128)
SATURATED = "0.32.0--c-kv-saturation.jsonl.gz"
IDLE = "0.32.0--a-idle.jsonl.gz"


def data(done: CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_worked_example_in_words_and_as_json(kvwatch: Kvwatch) -> None:
    words = ("plan", *NUMBERS, "--max-model-len", "8192", "--max-num-seqs", "8")
    told, found = kvwatch(*words).stdout, data(kvwatch(*words, "--json"))
    assert found["bytes_per_token_per_gpu"] == 131_072
    assert (found["needed_gib"], found["needed_gib_at_max_num_seqs"]) == (1, 8)
    assert "2 (K and V) × 8 KV heads × 128 × 2 B = 4,096 B per token" in told
    assert "8 × 1.00 GiB = 8.00 GiB" in told
    assert all(step in " ".join(told.split()) for step in found["steps"])
    assert all(warning in " ".join(told.split()) for warning in found["warnings"])
    assert found["serve"] in told


def test_what_fits_and_what_would_fit_more(kvwatch: Kvwatch) -> None:
    done = kvwatch(
        "plan", "--config", LLAMA, "--kv-cache-memory", "16GiB", "--max-model-len", "32K",
        "--lengths", "p50=1k,p95=6000,p99=20000", "--json",
    )  # fmt: skip
    found = data(done)
    assert done.returncode == 0
    assert (found["kv_cache_tokens"], found["num_blocks"], found["max_concurrency"]) == (131_072, 8192, 4)
    assert found["served"]["p95"]["max_concurrency"] == pytest.approx(8192 / 375)
    by_change = {one["change"]: one for one in found["variants"]}
    assert by_change["--kv-cache-dtype fp8"]["max_concurrency"] == 8
    assert by_change["--max-model-len 16384"]["max_concurrency"] == 8
    assert by_change["--tensor-parallel-size 2"]["bytes_per_token_per_gpu"] == 65_536
    assert f"--max-num-seqs {8192 // 375}" in found["serve"]
    row = next(one for one in found["table"] if one["tokens"] == 8192)
    assert row["needed_gib"] == [1, 4, 16, 64]


def test_a_request_that_does_not_fit(kvwatch: Kvwatch) -> None:
    """Exit 1, with the length that would fit, and a line that starts with it."""
    done = kvwatch(
        "plan", "--config", LLAMA, "--kv-cache-memory", "1GiB", "--max-model-len", "32768", "--json"
    )
    found = data(done)
    assert done.returncode == 1
    assert not found["fits"]
    assert found["longest_that_fits"] == 8176
    assert "vLLM would not start" in found["warnings"][0]
    assert "--max-model-len 8176 " in found["serve"]


def test_memory_of_a_gpu_less_weights(kvwatch: Kvwatch, tmp_path: Path) -> None:
    """The weights come from the files beside config.json, and each GPU holds its part of them."""
    (tmp_path / "config.json").write_text(LLAMA.read_text())
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 17179869184}}')
    words = ("plan", "--config", tmp_path, "--gpu-memory", "80GiB", "--overhead", "3GiB", "--json")
    assert data(kvwatch(*words))["kv_cache_memory_gib"] == pytest.approx(80 * 0.92 - 16 - 3)
    shared = data(kvwatch(*words, "--tensor-parallel-size", 4))
    assert shared["kv_cache_memory_gib"] == pytest.approx(80 * 0.92 - 4 - 3)
    assert shared["serve"].startswith(f"vllm serve {tmp_path} ")
    estimated = data(kvwatch("plan", "--config", tmp_path, "--gpu-memory", "80GiB", "--json"))
    assert any("estimate" in warning for warning in estimated["warnings"])


def test_without_a_length_a_plain_model_has_tokens_and_one_with_windows_has_none(
    kvwatch: Kvwatch, tmp_path: Path
) -> None:
    for name, tokens in (("deepseek-v3", True), ("mistral-7b-v0.1", False)):
        model = {
            key: value
            for key, value in json.loads((MODELS / f"{name}.json").read_text()).items()
            if key != "max_position_embeddings"
        }
        (tmp_path / "config.json").write_text(json.dumps(model))
        found = data(kvwatch("plan", "--config", tmp_path, "--kv-cache-memory", "20GiB", "--json"))
        assert (found["kv_cache_tokens"] is not None) == tokens
        assert found["max_concurrency"] is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "nothing to plan: give --config"),
        (["--layers", "32"], "--kv-heads and --head-dim must be given"),
        (["--layers", "1000000000", "--kv-heads", "8", "--head-dim", "128"], "that is no model; at most"),
        (["--config", "nowhere.json"], "nowhere.json: No such file or directory; give the config.json"),
        (["--config", "{model}", "--gpu-memory", "80"], "these are 80 bytes: write for example 80GiB"),
        (["--config", "{model}", "--lengths", "p50=6k,p50=8k"], "p50 is given twice"),
        (["--config", "{text}"], "not JSON"),
        (["--config", "{model}", "--layers", "3"], "one or the other"),
        (["--config", "{model}", "--weights", "16GiB"], "--weights counts only with --gpu-memory"),
        ([*map(str, NUMBERS), "--gpu-memory", "24GiB"], "needs the size of the weights"),
        (
            ["--config", "{model}", "--gpu-memory", "8GiB", "--weights", "16GiB"],
            "no memory is left for the cache",
        ),
        (["--config", "{model}", "--gpu-memory", "8GiB", "--weights", "much"], "neither a size"),
        (["--config", "{model}", "--max-model-len", "long"], "--max-model-len: long: write a whole number"),
        (["--config", "{model}", "--lengths", "p95=6k,p50=8k"], "must not be shorter"),
        (["--config", "{model}", "--lengths", "mean=6k"], "write p50=..,p95=..,p99=.."),
        (["--config", "{model}", "--gpu-memory-utilization", "92"], "above 0 and at most 1"),
        (["--config", "{model}", "--plot", "kv.pdf"], "must end in .svg or .png"),
        (["--url", "http://127.0.0.1:9"], "could not be scraped (refused"),
        (
            ["--url", "http://127.0.0.1:9", "--kv-cache-dtype", "fp8"],
            "--kv-cache-dtype counts only with a model: give --config",
        ),
        (["--url", "http://127.0.0.1:9", "--lengths", "p50=900"], "--lengths counts only with a model"),
    ],
)
def test_bad_input_is_one_clear_line(kvwatch: Kvwatch, tmp_path: Path, words: list[str], why: str) -> None:
    text = tmp_path / "config.txt"
    text.write_text("a model")
    done = kvwatch("plan", *[word.format(model=LLAMA, text=text) for word in words])
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert why in line


@pytest.mark.parametrize("name", ["kv.svg", "kv.png"])
def test_a_plot(kvwatch: Kvwatch, tmp_path: Path, name: str) -> None:
    """Drawn with the lengths, the limit and the memory in it."""
    path = tmp_path / name
    done = kvwatch(
        "plan", "--config", LLAMA, "--kv-cache-memory", "20GiB", "--lengths", "p95=6000", "--plot", path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if path.suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    drawn = path.read_text(encoding="utf-8")  # each text stands before its glyphs, as a comment
    for text in ("p95 6,000", "max_model_len 131,072", "KV cache: 20.00 GiB", "64 requests"):
        assert f"<!-- {text} -->" in drawn


def test_plan_needs_no_matplotlib_unless_it_draws(kvwatch: Kvwatch, tmp_path: Path) -> None:
    """Without the extra the rest works, and drawing says what to install."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    words = ("plan", "--config", LLAMA)
    assert kvwatch(*words, PYTHONPATH=str(tmp_path)).returncode == 0
    done = kvwatch(*words, "--plot", tmp_path / "kv.svg", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "pip install '.[plot]'" in done.stderr


def test_a_saturated_server(kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path) -> None:
    """Its lengths against its cache, and the plan against what vLLM reports of itself."""
    model = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12, "num_attention_heads": 8,
             "num_key_value_heads": 2, "hidden_size": 512, "torch_dtype": "bfloat16"}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model))
    done = kvwatch("plan", "--url", serve(recordings / SATURATED, begin=60), "--config", path, "--json")
    live = data(done)["live"]
    assert live["planned_tokens"] == live["kv_cache_size_tokens"] == 4096
    assert live["planned_max_concurrency"] == live["kv_cache_max_concurrency"]
    assert live["max_model_len"] == 2048
    assert live["requests_counted"] >= 20
    assert 0 < live["total_tokens"]["p50"] <= live["total_tokens"]["p99"]
    assert live["fits_at_once"]["p99"] <= live["fits_at_once"]["p50"]
    assert live["helps_most"] == "--kv-cache-dtype fp8"
    assert live["requests_waiting"] > 0


def test_a_server_without_a_configuration(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    done = kvwatch("plan", "--url", serve(recordings / SATURATED, begin=60))
    assert done.returncode == 0
    assert "vLLM reports a cache of 4,096 tokens, 2.00 full requests" in done.stdout
    assert "Helps most now: --kv-cache-dtype fp8" in done.stdout


def test_a_server_that_served_nothing(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    done = kvwatch("plan", "--url", serve(recordings / IDLE))
    assert done.returncode == 0
    assert "to know their lengths" in done.stdout
    assert "Helps most now: nothing" in done.stdout


def test_lengths_in_the_last_bucket_give_no_advice(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    """All prompts are longer than vLLM's last bound, 2,000: a limit of 2,048 would reject every one."""
    url = serve(recordings / "0.32.0--h-long-prompts.jsonl.gz", begin=60)
    done, found = kvwatch("plan", "--url", url), data(kvwatch("plan", "--url", url, "--json"))["live"]
    assert "≥ 2," in done.stdout
    assert found["fits"]["lower_bound"]
    assert found["fits"]["at_tokens"] > 3_400
    assert not any(one["change"].startswith("--max-model-len ") for one in found["options"])
    assert found["helps_most"] is None


def test_few_requests_give_no_advice_on_lengths(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    found = data(kvwatch("plan", "--url", serve(recordings / SATURATED, begin=20), "--json"))["live"]
    assert found["requests_counted"] < 100
    assert not any(one["change"].startswith("--max-model-len ") for one in found["options"])


def test_a_configuration_of_another_model_is_said_to_be_one(
    kvwatch: Kvwatch, serve: Serve, recordings: Path, tmp_path: Path
) -> None:
    model = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12, "num_attention_heads": 8,
             "num_key_value_heads": 2, "hidden_size": 512, "torch_dtype": "bfloat16",
             "max_position_embeddings": 1024}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model))
    done = kvwatch("plan", "--url", serve(recordings / SATURATED, begin=60), "--config", path)
    assert (
        "--config is another model's, or the server has other options: it allows 1,024 tokens at most"
        in " ".join(done.stdout.split())
    )


def test_what_fits_is_the_same_number_everywhere(kvwatch: Kvwatch, serve: Serve, recordings: Path) -> None:
    """In the plan of a running server and in the finding on it."""
    url = serve(recordings / SATURATED, begin=60)
    plan = data(kvwatch("plan", "--url", url, "--json"))["live"]["fits"]
    found = data(kvwatch("check", url, "--for", "15s", "--json"))
    fits = [one["evidence"]["fits"] for one in found["findings"] if "fits" in one["evidence"]]
    assert plan["requests"] > 0
    assert all(abs(one["requests"] - plan["requests"]) <= 1 for one in fits), "the lengths move on"
