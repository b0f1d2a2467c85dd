"""Whatever a log holds: it is read in bounded memory, to the same answer in whatever pieces, and shows no secret."""

# ruff: noqa: E501, ARG005 - lines of logs are as long as they are, and some are the same every time

from __future__ import annotations

import cProfile
import json
import math
import pstats
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvwatch.commands.explain import as_data
from kvwatch.logs import Explanation, LogReader
from kvwatch.logs.log_reader import WORDS
from kvwatch.logs.start_record import CONTINUED_WORDS

REAL = {
    path.relative_to(path.parents[2]).as_posix(): path.read_bytes()
    for path in sorted((Path(__file__).resolve().parents[1] / "captures").glob("*/logs/*.log"))
}
ERROR = b"(EngineCore_DP0 pid=77) ERROR 05-05 10:20:30 [core.py:718] "
OOM = ERROR + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s MiB. GPU 0 has a total"
DTYPE = (
    ERROR
    + b"vllm serve: error: argument --kv-cache-dtype: invalid choice: '%s' (choose from 'auto', 'fp8')\n"
)
STATISTICS = b"INFO 05-05 10:20:30 [loggers.py:1] Engine %s: Avg prompt throughput: %s tokens/s, Avg generation throughput: 1.0 tokens/s, Running: %s reqs, Waiting: 1 reqs, GPU KV cache usage: %s%%, Prefix cache hit rate: 0.0%%\n"
LONG = 1 << 20
"""Bytes of a line that are kept, and one more is cut off."""


def read(data: bytes, *sizes: int) -> Explanation:
    """Explains bytes in pieces of these sizes, over and over; in one piece without any."""
    reader, at, turn = LogReader(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return reader.explain()


def sound(found: Explanation) -> dict[str, Any]:
    """An explanation as data, once it is sure that it can be printed, shown and sent, and is short."""
    data = as_data(found, list(found.notes))
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    text.encode()
    assert len(text) < 100_000
    assert all(len(said) <= 300 for _, said in found.evidence)
    for value in found.facts.values():
        assert len(value) <= 30_000 if isinstance(value, str) else math.isfinite(value)
    return data


# -- whatever bytes ----------------------------------------------------------------------------------------------------

_WORDS = [word.encode() for word in (*WORDS, *CONTINUED_WORDS)]
_LINES = [line + b"\n" for log in REAL.values() for line in log.splitlines()]
_NOISE = [
    b"\0", b"\0" * 50, b"\r", b"\r\n", b"\n", b"\x1b[31m", b"\x1b]0;title\x07", b"\x1b]", b"\x9b", b"\xff\xfe", b"\xfe\xff",
    b"\xef\xbb\xbf", b"\xe2\x96", "█".encode(), "\u2028".encode(), b"{", b'{"log":"', b'\\ud800"}', b"9" * 400, b"-", b".", b",",
    b"1.2.3", b"nan", b"inf", b"1e999", b"'", b'"', b"(", b"[" * 9, b"x" * 70_000, b"2026-05-05T10:20:30Z ", b"a | ", ERROR,
    b"INFO 02-30 25:61:61 [x.py:1] ", b" Engine 000: ", b" tokens/s", b"% ", b" GiB", b": ", b"=",
]  # fmt: skip
_PARTS = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from(_NOISE),
    st.sampled_from(_LINES),
    st.binary(max_size=20),
    st.integers(-(10**25), 10**25).map(lambda n: str(n).encode()),
    st.floats().map(lambda x: str(x).encode()),
)
_SIZES = st.lists(st.integers(1, 200) | st.integers(1, 5000), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(st.lists(_PARTS, max_size=30).map(b"".join), _SIZES)
@example(DTYPE % b"fp16", [700])
@example(DTYPE % b"x" * 5000, [700])
@example(OOM % b"1.2.3", [700])
@example(OOM % (b"9" * 400), [700])
@example(STATISTICS % (b"000", b"1.2.3", b"1", b"1.0"), [700])
@example(STATISTICS % (b"000", b".", b"1", b"1.0"), [700])
@example(STATISTICS % (b"1" * 5000, b"1.0", b"1", b"1.0"), [700])
@example((STATISTICS % (b"000", b"1.0", b"9" * 400, b"9" * 400)) * 8, [700])
@example(b"INFO 05-05 10:00:00 [x.py:1] args: Namespace(kv_cache_dtype='" + b"x" * 60_000 + b"')\n", [700])
@example(b"INFO 05-05 10:00:00 [x.py:1] vLLM API server version 0." + b"1" * 60_000 + b"\n", [700])
@example(json.dumps({"message": f"{ERROR.decode()}ValueError: \ud800"}).encode() + b"\n", [700])
@example("\ufeffINFO 05-05 10:00:00 [x.py:1] vLLM API server version 0.9.0".encode("utf-16"), [1])
def test_whatever_bytes_are_explained_the_same_in_whatever_pieces(data: bytes, sizes: list[int]) -> None:
    whole = read(data)
    sound(whole)
    assert read(data, *sizes) == whole


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(REAL)), st.data(), _SIZES)
def test_a_damaged_log_of_a_real_server_is_explained(
    name: str, data: st.DataObject, sizes: list[int]
) -> None:
    log = REAL[name]
    for _ in range(data.draw(st.integers(1, 5))):
        at, end = sorted((data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))))
        kind = data.draw(st.sampled_from(["put", "cut out", "cut off", "double", "swap", "byte"]))
        if kind == "put":
            log = log[:at] + data.draw(_PARTS) + log[at:]
        elif kind == "cut out":
            log = log[:at] + log[end:]
        elif kind == "cut off":
            log = log[:end]
        elif kind == "double":
            log = log[:end] + log[at:]
        elif kind == "swap":
            log = log[at:] + log[:at]
        else:
            log = log[:at] + data.draw(st.binary(min_size=1, max_size=1)) + log[at + 1 :]
    whole = read(log)
    sound(whole)
    assert read(log, *sizes) == whole


@pytest.mark.parametrize("size", [1 << 16, LONG - 1, LONG, LONG + 1])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"x" * (3 * LONG) + ERROR + b"ValueError: No available memory for the cache blocks", False),
        (b"x" * (LONG - 20) + b"ValueError: No available memory for the cache blocks", False),
        (b"50%|##| 1/2 [00:01]\r" * 200_000 + ERROR + b"ValueError: No available memory for the cache blocks", True),
        (b"\0" * (3 * LONG) + ERROR + b"ValueError: No available memory for the cache blocks", True),
        (b'{"message": "' + b"x" * (3 * LONG) + b'", "exc_info": "ValueError: No available memory for the cache blocks"}', False),
    ],
    ids=["beyond", "across", "a bar of progress", "zeros", "JSON"],
)  # fmt: skip
def test_of_a_line_of_megabytes_the_beginning_counts_that_a_console_would_show(
    line: bytes, found: bool, size: int
) -> None:
    log = b"INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.9.0\n" + line + b"\n"
    explained = read(log, size)
    assert explained == read(log)
    assert (explained.verdict == "no_room_for_any_block") is found


# -- noise -------------------------------------------------------------------------------------------------------------

#: Lines between those of vLLM that mean nothing to anybody here.
MEANINGLESS = [
    b"", b"\0" * 300, b"\x1b[2J\x1b[1;1H", bytes(range(128, 256)), b"\xe2\x96", b"  ", b"\x07\x08", b"{}", b'{"message": 3}', b"[" * 500,
    b'INFO:     10.0.0.7:41022 - "GET /metrics HTTP/1.1" 200 OK', b"50%|#####     | 1/2 [00:01<00:01]\r 51%|#####     |\r",
    b"INFO 05-05 10:20:31 [launcher.py:46] Route: /v1/models, Methods: GET", b"y" * 80_000,
    b"(Worker_TP1 pid=9) INFO 05-05 10:20:31 [cuda.py:290] Using Flash Attention backend on V1 engine.",
    b"[rank1]:[W505 10:20:31.1 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed",
    json.dumps({"level": "info", "message": "health ok", "ts": "2026-05-05T10:20:31Z"}).encode(),
]  # fmt: skip


def _answer(found: Explanation) -> tuple[Any, ...]:
    """All that a person acts on; line numbers are others."""
    symptoms = [(one.symptom, one.confidence, one.key, one.advice) for one in found.symptoms]
    texts = [text for _, text in found.evidence]
    return (
        found.verdict,
        found.confidence,
        found.facts,
        found.actions,
        found.starts,
        found.exit_code,
        symptoms,
        texts,
    )


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(REAL)), st.data())
def test_lines_that_mean_nothing_change_no_answer(name: str, data: st.DataObject) -> None:
    lines = REAL[name].splitlines()
    noise = data.draw(
        st.lists(st.tuples(st.integers(0, len(lines)), st.sampled_from(MEANINGLESS)), max_size=40)
    )
    for at, one in sorted(noise, key=lambda pair: pair[0], reverse=True):
        lines.insert(at, one)
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    noisy = end.join([*lines, b""])
    assert _answer(read(noisy, 1 << 16)) == _answer(read(REAL[name]))


@pytest.mark.parametrize("name", REAL)
def test_what_is_put_before_every_line_on_its_way_changes_no_answer(name: str) -> None:
    wanted = _answer(read(REAL[name]))
    for before in (
        b"\0\0",
        b"\x1b[32m",
        b"[pod/chat-0/vllm] ",
        b"vllm-1  | ",
        b"\x1b[0m\x1b]0;x\x07",
        b"loading 5%|#  |\r",
    ):
        noisy = b"".join(before + line + b"\n" for line in REAL[name].splitlines())
        assert _answer(read(noisy, 999)) == wanted, before


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRET = "Pa55-w0rd-of-mine"  # noqa: S105
_SECRET_OPTIONS = st.sampled_from(
    ["'api_key': ['{}']", "'api_key': '{}'", "'hf_token': \"{}\"", "--api-key {}", "--hf-token={}", "api_key={}", "HF_TOKEN={}", "Authorization: Bearer {}", "https://bob:{}@host/v1", "https://host/v1?token={}",
     r"\"api_key\": \"{}\"", "'secret': b'{} and more {}'", "password={}", '{{"credentials": "{}"}}', "x?user_key={}"]
)  # fmt: skip
_AROUND = st.sampled_from(
    ["INFO 05-05 10:20:00 [utils.py:1] non-default args: {{'max_model_len': 4096, {}, 'block_size': 16}}",
     "ERROR 05-05 10:20:00 [core.py:1] ValueError: can't start with {} as it is",
     "OSError: can't start with {}, max_num_seqs=3", "vllm: error: unrecognized arguments: {}", "vllm serve m --max-num-seqs 9 {}",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. {}", "pydantic.ValidationError: {}",
     "ERROR 05-05 10:20:00 [core.py:1] ValueError: No available memory for the cache blocks. {}",
     "INFO 05-05 10:20:00 [x.py:1] GPU KV cache size: 9,000 tokens {}", "args: Namespace(kv_cache_dtype='{}', model='m')"]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_SECRET_OPTIONS, _AROUND, st.integers(0, 1300)), min_size=1, max_size=6))
@example([("'api_key': ['{}']", "OSError: {}", 1184)])
@example([("https://bob:{}@host/v1", "OSError: {}", 1180)])
def test_no_secret_is_shown(options: list[tuple[str, str, int]]) -> None:
    """Wherever it stands in the line: short of where a text is cut, across it, and beyond."""
    lines = [around.format("." * pad + " " + how.format(SECRET, SECRET)) for how, around, pad in options]
    data = "\n".join(
        [
            "INFO 05-05 10:20:00 [a.py:1] vLLM API server version 0.9.0",
            *lines,
            "RuntimeError: Engine core initialization failed",
        ]
    )
    found = read(data.encode())
    assert "Pa55" not in json.dumps(sound(found)) + repr(found)


# -- bounds ------------------------------------------------------------------------------------------------------------

HOSTILE: dict[str, Callable[[int], bytes]] = {
    "frames": lambda n: b'(W%d pid=1) ERROR 05-05 10:20:30 [x.py:1]   File "a.py", line 1, in ' % n + b"f" * 60_000,
    "processes": lambda n: b"(Worker_%d pid=1) ERROR 05-05 10:20:30 [x.py:1] ValueError: No available memory for the cache blocks" % n + b" " * 4000,
    "statistics": lambda n: (STATISTICS % (b"%d" % (n % 7), b"1.0", b"1", b"1.0")).rstrip() + b" " * 1000 + b"z" * 40_000,
    "options": lambda n: b"args: Namespace(model='%d', kv_cache_dtype='" % n + b"d" * 60_000 + b"')",
    "errors": lambda n: b"%dError: Exception " % n + b"e" * 60_000,
    "starts": lambda n: b"INFO 05-05 10:20:00 [api_server.py:1] vLLM API server version 0.%d\n" % n + OOM % b"1.0" + b"o" * 60_000,
    "wrapped": lambda n: ERROR + b"ValueError: KV cache is needed, which\n" + b"w" * 60_000,
    "JSON": lambda n: b'{"message": "ValueError: %d' % n + b'\\nValueError: x' * 50 + b'y' * 60_000 + b'"}',
    "no end": lambda n: b"ValueError: " + b"x" * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_log_of_any_kind_and_length_takes_bounded_memory(kind: str) -> None:
    """Five megabytes; kept are the first one, to see what it is, and of lines no more
    than is shown."""

    def pieces() -> Iterator[bytes]:
        end = b" " if kind == "no end" else b"\n"
        size, n = 0, 0
        while size < 5 << 20:
            piece = HOSTILE[kind](n) + end
            yield piece
            size, n = size + len(piece), n + 1

    reader = LogReader()
    tracemalloc.start()
    try:
        for piece in pieces():
            reader.feed(piece)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20
    assert kept < 4 << 20, "not less than what came would be no bound"
    sound(reader.explain())


def test_statistics_of_very_many_engines_are_judged_in_proportion() -> None:
    """Work is counted in calls: what ten times as many engines take is about ten times as much."""
    few, many = (_judged(engines) for engines in (8, 80))
    assert many < 15 * few


def _judged(engines: int) -> int:
    data = b"".join(STATISTICS % (b"%d" % n, b"1.0", b"1", b"99.0") for n in range(engines)) * 3
    profile = cProfile.Profile()
    profile.enable()
    read(data)
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]
