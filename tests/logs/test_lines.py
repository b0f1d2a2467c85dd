"""Ways that a log took: what was put before its lines, how they are cut, and what is no log at all."""

# ruff: noqa: E501 - lines of logs are as long as they are

import json
from collections.abc import Callable

import pytest

from kvwatch.logs import Explanation
from kvwatch.logs.lines import LogLine, parse_line

Explain = Callable[..., Explanation]

START = "(EngineCore_DP0 pid=77) ERROR 05-05 10:20:30 [core.py:718] "
ERROR = (
    "ValueError: Free memory on device (20.1/39.4 GiB) on startup is less than desired GPU memory utilization"
    " (0.85, 33.49 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
LINE = START + ERROR

#: A line as it arrives, by the way it took.
WAYS = {
    "plain": LINE,
    "colours": f"\x1b[1;36m(EngineCore_DP0 pid=77)\x1b[0;0m \x1b[31mERROR\x1b[0m 05-05 10:20:30 [core.py:718] {ERROR}",
    "kubectl --timestamps": f"2026-05-05T10:20:31.123456789Z {LINE}",
    "kubectl --prefix": f"[pod/chat-0/vllm] {LINE}",
    "container runtime": f"2026-05-05T10:20:31.123456789+00:00 stderr F {LINE}",
    "compose": f"vllm-1  | {LINE}",
    "journal": f"May 05 10:20:31 gpu7 vllm[812]: {LINE}",
    "stern": f"chat-0 vllm {LINE}",
    "docker": json.dumps({"log": f"{LINE}\n", "stream": "stderr", "time": "2026-05-05T10:20:31.1Z"}),
    "JSON of the logger": json.dumps(
        {"asctime": "2026-05-05 10:20:30", "levelname": "ERROR", "message": ERROR}
    ),
    "JSON with a traceback": json.dumps(
        {
            "levelname": "ERROR",
            "message": "EngineCore failed to start.",
            "exc_info": f"Traceback (most…)\n{ERROR}",
        }
    ),
    "after a progress bar": f"Loading:  99%|####| 1/2 [00:01]\rLoading: 100%|####|\r{LINE}",
    "Windows": f"{LINE}\r",
    "no prefix at all": ERROR,
    "v0": f"ERROR 05-05 10:20:30 engine.py:366] {ERROR}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_cause_is_found_whatever_way_the_line_took(way: str, explain: Explain) -> None:
    found = explain(["vllm starts", WAYS[way]])
    assert found.verdict == "free_memory_below_budget"
    assert found.facts["free_gib"] == 20.1
    assert found.facts["desired_gib"] == 33.49
    ((number, text),) = found.evidence
    assert number == 2
    assert text.startswith("ValueError: Free memory on device")


def test_level_process_and_time_are_read() -> None:
    (line,) = parse_line(LINE.encode(), 4)
    assert line == LogLine(4, ERROR, "ERROR", "EngineCore_DP0 pid=77", "05-05 10:20:30")
    (line,) = parse_line(b"2026-05-05T10:20:31.5Z some words", 1)
    assert (line.text, line.when) == ("some words", "05-05 10:20:31")


def test_a_message_that_a_console_wrapped_is_put_together(explain: Explain) -> None:
    words = ERROR.split(" ")
    found = explain([" ".join(words[:9]), " ".join(words[9:16]), " ".join(words[16:])])
    assert found.facts["desired_gib"] == 33.49
    assert "33.49 GiB" in found.evidence[0][1]


def test_a_truncated_line_shows_what_is_left_of_it(explain: Explain) -> None:
    found = explain([LINE[: LINE.index("is less than")]])
    assert (found.verdict, found.facts["free_gib"]) == ("free_memory_below_budget", 20.1)
    assert "util" not in found.facts


def test_ranks_count_once_and_are_named(explain: Explain) -> None:
    lines = [f"(Worker_TP{rank} pid={rank}) ERROR 05-05 10:20:30 [x.py:1] {ERROR}" for rank in (2, 0, 1)]
    found = explain([*lines, "ERROR 05-05 10:20:31 [core.py:1] EngineCore failed to start."])
    assert found.facts["ranks"] == "Worker_TP2, Worker_TP0, Worker_TP1"
    assert [line for line, _ in found.evidence] == [1]


def test_tracebacks_of_ranks_that_are_interleaved_do_not_mix(explain: Explain) -> None:
    def frame(rank: int, name: str) -> str:
        return f'(Worker_TP{rank} pid={rank}) ERROR 05-05 10:00:00 [x.py:1]   File "a.py", line 1, in {name}'

    oom = "(Worker_TP0 pid=0) ERROR 05-05 10:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    found = explain([frame(0, "capture_model"), frame(1, "load_model"), frame(1, "create_weights"), oom])
    assert found.verdict == "oom_graph_capture"


def test_the_first_cause_counts_and_not_what_followed_from_it(explain: Explain) -> None:
    later = "ERROR 05-05 10:21:30 [core.py:718] ValueError: No available memory for the cache blocks."
    assert explain([LINE, later]).verdict == "free_memory_below_budget"


def test_what_a_request_quotes_is_no_cause(explain: Explain) -> None:
    quoted = f"INFO 05-05 10:20:30 [logger.py:39] Received request x: prompt: 'why {ERROR}', params: SamplingParams()"
    found = explain(["INFO:     Application startup complete.", quoted])
    assert (found.verdict, found.exit_code) == ("ok", 0)


def test_of_restarts_the_last_is_judged(explain: Explain) -> None:
    version = "INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.10.2"
    no_blocks = "ERROR 05-05 10:21:30 [core.py:718] ValueError: No available memory for the cache blocks."
    found = explain([version, LINE, version, LINE, version, no_blocks])
    assert (found.verdict, found.starts) == ("no_room_for_any_block", 3)
    begun = explain([version, LINE, version])
    assert (begun.verdict, begun.starts) == ("free_memory_below_budget", 2)
    assert "has only begun" in begun.notes[0]


def test_secrets_in_options_are_not_shown(explain: Explain) -> None:
    args = (
        "INFO 05-05 10:20:00 [utils.py:1] non-default args: {'api_key': ['very-secret'], 'hf_token': 'hf_abcdefghij123',"
        " 'num_gpu_blocks_override': 64, 'max_model_len': 4096}"
    )
    wrong = "OSError: can't use --hf-token hf_abcdefghij123 with 'api_key': ['very-secret']"
    found = explain([args, wrong, "ERROR 05-05 10:21:30 [core.py:718] EngineCore failed to start."])
    shown = repr(found)
    assert "very-secret" not in shown
    assert "hf_abc" not in shown
    assert found.facts["num_gpu_blocks_override"] == 64


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "It is empty."),
        (bytes(range(256)) * 8, "It is binary, not text."),
        (b"Jan 01 10:00:00 host sshd[1]: Accepted publickey for someone\n" * 50, "No line of this log is from vLLM."),
        (b"step 1\n" * 50 + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\n", "No line of this log is from vLLM"),
    ],
)  # fmt: skip
def test_what_is_no_log_of_vllm_is_said_in_a_sentence(data: bytes, said: str, explain: Explain) -> None:
    found = explain(data)
    assert (found.verdict, found.exit_code) == ("no_vllm_log", 2)
    assert found.meaning.startswith(said)


def test_two_bytes_a_character_are_read(explain: Explain) -> None:
    """As a console of Windows writes what is sent to a file."""
    assert explain(f"{LINE}\n".encode("utf-16")).verdict == "free_memory_below_budget"


def test_a_line_without_an_end_takes_no_more_memory_than_a_piece(explain: Explain) -> None:
    found = explain(b"x" * (5 << 20) + b"\n" + f"{LINE}\n".encode(), piece=1 << 16)
    assert (found.verdict, found.evidence[0][0], found.lines) == ("free_memory_below_budget", 2, 2)
