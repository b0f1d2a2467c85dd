"""Starts that failed: verdict, numbers, and advice that fits the cause."""

# ruff: noqa: E501, ISC004 - lines of logs are as long as they are

from collections.abc import Callable
from typing import Any

import pytest

from kvwatch.logs import Explanation

Explain = Callable[..., Explanation]
Real = Callable[[str], bytes]

LONG_V1 = (
    "ValueError: To serve at least one request with the models's max seq len (90000), (11.0 GiB KV cache is needed, which"
    " is larger than the available KV cache memory (4.0 GiB). Based on the available memory, the estimated maximum model"
    " length is 32720. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
LONG_V0 = (
    "ValueError: The model's max seq len (12000) is larger than the maximum number of tokens that can be stored in KV cache"
    " (9008). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
BUSY = (
    "ValueError: Free memory on device (20.1/39.4 GiB) on startup is less than desired GPU memory utilization"
    " (0.85, 33.49 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of"
    " which 700.00 MiB is free. Including non-PyTorch memory, this process has 78.20 GiB memory in use. Of the allocated"
    " memory 74.00 GiB is allocated by PyTorch, and 2.25 GiB is reserved by PyTorch but unallocated."
)
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def traceback(*functions: str, error: str) -> list[str]:
    """A traceback as a worker logs it, outermost function first."""
    start = "(Worker_TP0 pid=7) ERROR 05-05 10:00:00 [multiproc_executor.py:815] "
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "vllm/v1/worker/gpu_worker.py", line 9, in {name}' for name in functions]
    return [start + line for line in (*lines, error)]


#: What a log says, the verdict, and facts among others.
CASES: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "v0 length": ([LONG_V0], "kv_pool_smaller_than_max_len", {"max_model_len": 12000, "kv_tokens": 9008}),
    "v1 length": (
        [f"(EngineCore_DP0 pid=3) ERROR 05-05 10:00:00 [core.py:718] {LONG_V1}"],
        "kv_pool_smaller_than_max_len",
        {"max_model_len": 90000, "needed_gib": 11.0, "available_gib": 4.0, "estimated_max_len": 32720},
    ),
    "0.7, in GB": (
        [LONG_V1.replace("GiB", "GB").replace("Based on the available memory, the estimated maximum model length is 32720. ", "")],
        "kv_pool_smaller_than_max_len",
        {"needed_gib": 11.0, "available_gib": 4.0},
    ),
    "no blocks": (
        ["# GPU blocks: 0, # CPU blocks: 512", "ValueError: No available memory for the cache blocks. Try increasing it"],
        "no_room_for_any_block",
        {"gpu_blocks": 0},
    ),
    "busy card": ([BUSY], "free_memory_below_budget", {"free_gib": 20.1, "total_gib": 39.4, "util": 0.85, "desired_gib": 33.49}),
    "busy card, device named": (
        [BUSY.replace("on device (", "on device cuda:1 (")], "free_memory_below_budget", {"free_gib": 20.1}
    ),
    "memory grew, in bytes": (
        ["AssertionError: Error in memory profiling. Initial free memory 8589934592, current free memory 17179869184. This"],
        "free_memory_grew_during_profiling",
        {"initial_free_gib": 8.0, "current_free_gib": 16.0},
    ),
    "sampler": (
        ["RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering"],
        "oom_sampler_warmup",
        {"dummy_requests": 256},
    ),
    "states": (
        ["ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (300)."],
        "state_blocks_below_max_num_seqs",
        {"max_num_seqs": 512, "state_blocks": 300},
    ),
    "pages": (
        ["NotImplementedError: Layer a.b: page size is not divisible by the maximum page size and cannot be padded."],
        "kv_spec_page_mismatch",
        {},
    ),
    "FP8 on an old card": (
        ["ValueError(\"type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\")"],
        "kv_dtype_unsupported",
        {},
    ),
    "FP8, early v1": (["NotImplementedError: FlashAttention V1 with FP8 KV cache not yet supported"], "kv_dtype_unsupported", {}),
    "no backend for the format": (
        [
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(kv_cache_dtype=fp8)."
            " Reasons: {FLASH_ATTN: [kv_cache_dtype not supported]}."
        ],
        "kv_dtype_unsupported",
        {},
    ),
    "no backend for the block": (
        [
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(block_size=8)."
            " Reasons: {FLASH_ATTN: [block_size not supported]}."
        ],
        "block_size_unsupported",
        {},
    ),
    "out of memory, loading": (traceback("load_model", "create_weights", error=OOM), "oom_loading_weights", {"tried_mib": 1536.0}),
    "out of memory, trial batch": (
        traceback("determine_available_memory", "profile_run", "_dummy_run", error=OOM), "oom_profiling", {"free_mib": 700.0}
    ),
    "out of memory, graphs": (
        traceback("compile_or_warm_up_model", "capture_model", error=OOM), "oom_graph_capture", {"total_gib": 79.11}
    ),
    "out of memory, sampler": (
        traceback("compile_or_warm_up_model", "_dummy_sampler_run", error=OOM), "oom_sampler_warmup", {"in_use_gib": 78.2}
    ),
    "out of memory, kernels": (traceback("kernel_warmup", "deep_gemm_warmup", error=OOM), "oom_kernel_warmup", {}),
    "out of memory, by the last step": (
        ["INFO 05-05 10:00:00 [gpu_model_runner.py:2338] Starting to load model some/model...", OOM], "oom_loading_weights", {}
    ),
    "out of memory, running": (
        ["INFO:     Application startup complete.", OOM], "oom_at_runtime_activation", {"reserved_unallocated_gib": 2.25}
    ),
    "out of memory, old words": (
        [
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity;"
            " 22.82 GiB already allocated; 9.06 MiB free; 22.98 GiB reserved in total by PyTorch)"
        ],
        "oom_at_runtime_activation",
        {"tried_mib": 20.0, "free_mib": 9.06, "total_gib": 23.69, "in_use_gib": 22.82},
    ),
    "wrapper alone": ([WRAPPER], "unknown_root_cause_above", {}),
    "another error": (
        ["INFO 05-05 10:00:00 [api_server.py:1] vLLM API server version 0.9.0", "OSError: no such model", WRAPPER],
        "unknown_root_cause_above",
        {"version": "0.9.0"},
    ),
    "tight": (
        [
            "INFO worker.py:9] the current vLLM instance can use total_gpu_memory (40.00GiB) x gpu_memory_utilization (0.90) = 36.00GiB",
            "INFO worker.py:9] model weights take 33.00GiB; non_torch_memory takes 0.50GiB; PyTorch activation peak memory"
            " takes 0.50GiB; the rest of the memory reserved for KV Cache is 2.00GiB.",
        ],
        "ok_but_tight",
        {"budget_gib": 36.0, "weights_gib": 33.0, "non_torch_gib": 0.5, "activation_gib": 0.5, "available_gib": 2.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_numbers(name: str, explain: Explain) -> None:
    lines, verdict, facts = CASES[name]
    found = explain(lines)
    assert found.verdict == verdict
    assert {key: found.facts.get(key) for key in facts} == facts
    assert found.meaning
    assert found.actions


#: Of real servers of 0.32 that did not start.
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "max-model-len": (
        "kv_pool_smaller_than_max_len",
        {"max_model_len": 262144, "needed_gib": 1.5, "available_gib": 1.0, "estimated_max_len": 174720},
    ),
    "blocks-override": (
        "kv_pool_smaller_than_max_len",
        {"max_model_len": 4096, "estimated_max_len": 2016, "num_gpu_blocks_override": 64, "block_size": 32},
    ),
    "no-blocks": ("no_room_for_any_block", {"util": 0.01}),
    "block-size": ("block_size_unsupported", {"block_size": 16, "block_size_multiple": 32}),
}


@pytest.mark.parametrize("name", REAL)
def test_real_starts_that_failed(name: str, explain: Explain, real: Real) -> None:
    verdict, facts = REAL[name]
    found = explain(real(f"0.32.0/logs/startup-failure-{name}"))
    assert (found.verdict, found.confidence, found.exit_code) == (verdict, "high", 1)
    assert {key: found.facts.get(key) for key in facts} == facts
    (line, text), *_ = found.evidence
    assert "ValueError" in text
    assert line > 1


def test_a_pinned_pool_is_said_and_the_utilisation_is_not_advised(explain: Explain, real: Real) -> None:
    found = explain(real("0.32.0/logs/startup-failure-blocks-override"))
    assert "fixed by --num-gpu-blocks-override 64" in found.meaning
    assert found.actions[0].startswith("remove --num-gpu-blocks-override, or set it to 129 or more")
    assert any("num_gpu_blocks_override=64" in text for _, text in found.evidence)


def test_a_pool_of_fixed_bytes_that_fails_at_once_is_the_pool_with_little_confidence(
    explain: Explain,
) -> None:
    line = "INFO [gpu_worker.py:479] Initial free memory 70.5 GiB, reserved 20.0 GiB memory for KV Cache as specified by"
    found = explain(
        [f"{line} kv_cache_memory_bytes config", "ERROR [core.py:1330] EngineCore failed to start."]
    )
    assert (found.verdict, found.confidence) == ("kv_pool_smaller_than_max_len", "low")
    assert found.facts["kv_cache_memory_bytes_gib"] == 20.0
    assert "has no effect" in found.actions[0]


def test_look_alikes_want_opposite_changes(explain: Explain) -> None:
    """Rounded down, and nothing is proposed where nothing is free."""
    lower = explain([BUSY])
    assert "0.51 or less" in lower.actions[1]
    full = explain([BUSY.replace("20.1/39.4", "0.8/39.4")])
    assert full.actions[0].startswith("free the GPU: no --gpu-memory-utilization helps")
    assert not any("or less" in action for action in full.actions)
    raised = explain(["ValueError: No available memory for the cache blocks."])
    assert any("larger share" in action for action in raised.actions)
    assert "do not lower --max-model-len" in raised.actions[-1]


def test_what_is_missing_by_far_is_not_expected_of_the_utilisation(explain: Explain) -> None:
    assert any(
        "do not raise --gpu-memory-utilization for this" in action for action in explain([LONG_V1]).actions
    )
    near = explain([LONG_V1.replace("11.0 GiB", "4.4 GiB")])
    assert any("0.4 GiB more are needed" in action for action in near.actions)


def test_a_large_trial_batch_is_advised_first(explain: Explain) -> None:
    """0.6.4: without chunked prefill the trial batch is as long as a request, and the cache pays for it."""
    profile = (
        "Memory profiling results: total_gpu_memory=23.60GiB initial_memory_usage=15.00GiB peak_torch_memory=18.50GiB"
        " memory_usage_post_profile=15.10GiB non_torch_memory=0.30GiB kv_cache_size=2.44GiB gpu_memory_utilization=0.90"
    )
    found = explain([profile, LONG_V0])
    assert found.actions[0].startswith("turn on chunked prefill")
    assert "3.5 GiB" in found.actions[0]
    assert [step.what for step in found.budget if step.takes] == [
        "weights and peak activations", "outside PyTorch"
    ]  # fmt: skip


def test_fp8_is_not_advised_where_it_is_on(explain: Explain) -> None:
    args = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {'kv_cache_dtype': 'fp8', 'pipeline_parallel_size': 2}"
    advice = " ".join(explain([args, LONG_V1]).actions)
    assert "--kv-cache-dtype" not in advice
    assert "pipeline parallelism" in advice


def test_a_pool_that_was_large_enough_before_is_found_again_before_the_length_is_cut(
    explain: Explain,
) -> None:
    """What took the rest is the trial batch, if it follows the length."""
    before = "INFO 05-05 09:00:00 [gpu_worker.py:1] Available KV cache memory: 11.5 GiB"
    assert explain([before, LONG_V1]).actions[0].startswith("set --max-num-batched-tokens")
    smaller = before.replace("11.5", "9.0")
    assert explain([smaller, LONG_V1]).actions[0].startswith("set --max-model-len to 32720")


def test_v1_chunks_prefill_by_itself(explain: Explain) -> None:
    """The trial batch is no matter there, unless somebody turned chunking off."""
    off = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {'enable_chunked_prefill': False}"
    assert "prefill" not in " ".join(explain([LONG_V1]).actions)
    assert "turn on chunked prefill and set" in " ".join(explain([off, LONG_V1]).actions)


def test_with_pipeline_parallelism_the_length_that_is_proposed_is_not_the_limit(explain: Explain) -> None:
    """Said first where the log shows the option, as a condition where it shows none, and not where it shows others."""
    args = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {{'model': 'm'{}}}"
    first = explain([args.format(", 'pipeline_parallel_size': 2"), LONG_V1]).actions[0]
    assert first.startswith("with pipeline parallelism")
    assert "131,235 bytes per token" in first
    assert explain([LONG_V1]).actions[1].startswith("if it runs with pipeline parallelism")
    assert "pipeline" not in " ".join(explain([args.format(""), LONG_V1]).actions)


def test_a_log_without_options_does_not_say_that_the_cache_is_not_fp8(explain: Explain) -> None:
    assert "unless it is set already" in " ".join(explain([LONG_V1]).actions)
    args = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {'model': 'm'}"
    assert "unless it is set already" not in " ".join(explain([args, LONG_V1]).actions)


def test_what_a_desktop_holds_is_left_alone_and_a_forgotten_server_is_not(explain: Explain) -> None:
    small = BUSY.replace("20.1/39.4", "7.1/7.9").replace("(0.85, 33.49 GiB)", "(0.95, 7.5 GiB)")
    assert explain([small]).actions[0].startswith("set --gpu-memory-utilization to 0.89 or less")
    assert explain([BUSY]).actions[0].startswith("find the process that holds 19.3 GiB")


def test_fewer_weights_are_advised_where_they_are_what_leaves_no_room(explain: Explain) -> None:
    error = "ValueError: No available memory for the cache blocks. Try increasing it"
    budget = (
        "INFO worker.py:267] the current vLLM instance can use total_gpu_memory (24.00GiB) x gpu_memory_utilization"
        " (0.50) = 12.00GiB"
    )
    weights = "INFO model_runner.py:1] Loading model weights took {} GB"
    assert any("if the log shows" in action for action in explain([error]).actions)
    assert not any("fewer weights" in a for a in explain([budget, weights.format("1.0"), error]).actions)
    large = explain([budget, weights.format("11.0"), error]).actions
    assert any(action.startswith("put fewer weights") for action in large)


def test_the_budget_is_a_waterfall(explain: Explain) -> None:
    steps = [(step.gib, step.takes) for step in explain(CASES["tight"][0]).budget]
    assert steps == [(40.0, False), (36.0, False), (33.0, True), (0.5, True), (0.5, True), (2.0, False)]


def test_real_servers_that_came_up_are_fine(explain: Explain, real: Real) -> None:
    found = explain(real("0.32.0/logs/server-i-restart"))
    assert (found.verdict, found.confidence, found.exit_code, found.starts) == ("ok", "high", 0, 2)
    assert "has 2 starts" in found.notes[0]


def test_an_engine_that_died_while_it_ran_is_not_a_failed_start(explain: Explain, real: Real) -> None:
    found = explain(real("0.32.0/logs/server-o-engine-killed"))
    assert (found.verdict, found.died_running, found.exit_code) == ("ok", True, 1)
    assert "died while it ran" in found.notes[0]


@pytest.mark.parametrize("width", [60, 70, 80, 90, 100, 132])
def test_a_console_may_break_a_message_anywhere(width: int, explain: Explain) -> None:
    """In the middle of a word and of a number too; what is left of a line whose beginning is lost counts as well."""
    message = f"(EngineCore_DP0 pid=3) ERROR 05-05 10:00:00 [core.py:718] {LONG_V1}"
    found = explain([message[i : i + width] for i in range(0, len(message), width)])
    assert found.verdict == "kv_pool_smaller_than_max_len"
    wanted = {"max_model_len": 90000, "needed_gib": 11.0, "available_gib": 4.0, "estimated_max_len": 32720}
    assert wanted.items() <= found.facts.items()
    assert explain([LONG_V1[40:]]).facts["estimated_max_len"] == 32720


def test_a_truncated_number_is_no_fact(explain: Explain) -> None:
    cut = LONG_V1[: LONG_V1.index("32720") + 3]
    assert "estimated_max_len" not in explain([cut]).facts


def test_numbers_that_none_can_be_are_left_out(explain: Explain) -> None:
    args = "INFO 05-05 10:00:00 [utils.py:3] non-default args: {'model': 'm', 'max_num_seqs': %s}" % (
        "9" * 400
    )
    for odd in (LONG_V1.replace("90000", "9" * 400), LONG_V1.replace("11.0", "9" * 400 + ".0")):
        facts = explain([args, odd]).facts
        assert facts["estimated_max_len"] == 32720
        assert all(value < 1e18 for value in facts.values() if isinstance(value, int | float))


UP = [
    "INFO 05-05 09:59:00 [api_server.py:1] vLLM API server version 0.10.0",
    "INFO:     Application startup complete.",
]
RUNS = (
    "INFO 05-05 10:00:{} [loggers.py:1] Engine 000: Avg prompt throughput: 30.0 tokens/s, Avg generation throughput: 300.0"
    " tokens/s, Running: 9 reqs, Waiting: 0 reqs, GPU KV cache usage: 20.0%, Prefix cache hit rate: 0.0%"
)


def test_errors_in_a_prompt_of_several_lines_are_no_failure_of_a_server_that_runs_on(
    explain: Explain,
) -> None:
    prompt = [
        "INFO 05-05 10:00:05 [logger.py:1] Received request cmpl-1: prompt: 'Explain this:",
        "Traceback (most recent call last):", '  File "x.py", line 3, in load_model', OOM,
        "ValueError: No available memory for the cache blocks. Try increasing it", "', params: SamplingParams(n=1)",
    ]  # fmt: skip
    found = explain([*UP, RUNS.format("00"), *prompt, RUNS.format(10)])
    assert (found.verdict, found.exit_code) == ("ok", 0)
    assert any("a prompt quotes it" in note for note in found.notes)
    died = traceback("run_busy_loop", "execute_model", error=OOM)
    found = explain([*UP, RUNS.format("00"), *died, RUNS.format(10)])
    assert found.verdict == "oom_at_runtime_activation"


def test_a_log_that_ends_in_the_middle_of_a_start_is_no_answer(explain: Explain) -> None:
    found = explain(
        [UP[0], "INFO 05-05 10:00:10 [gpu_model_runner.py:1] Starting to load model m...", "Killed"]
    )
    assert (found.verdict, found.confidence, found.exit_code) == ("ok", "low", 2)
    assert any("while the model is loaded" in note and "137" in note for note in found.notes)


def test_options_that_vllm_does_not_take_are_the_error(explain: Explain) -> None:
    found = explain(
        ["usage: vllm serve [model_tag] [options]", "vllm: error: unrecognized arguments: --max-length 9"]
    )
    assert (found.verdict, found.exit_code) == ("unknown_root_cause_above", 2)
    assert "unrecognized arguments: --max-length 9" in found.meaning


def test_an_error_without_a_reason_includes_the_next_line(explain: Explain) -> None:
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
    why = "  Value error, User-specified max_model_len (200000) is greater than the derived max_model_len"
    assert (
        "greater than the derived"
        in explain([UP[0], error, why, "    For further information visit"]).meaning
    )
