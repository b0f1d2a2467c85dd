"""What can be read of a recording, whatever became of the file, and that writing loses nothing."""

import gzip
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.judgement.accounting import gap_s
from kvwatch.core.model.gpu import Gpu, GpuReading
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.recording import (
    ClockStep,
    Record,
    RecordingError,
    Skipped,
    Writer,
    failure_of,
    outcome_of,
    read,
    with_spacing,
)

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def reasons(path: Path, **options: int) -> list[str]:
    return [item.reason for item in read(path, **options) if isinstance(item, Skipped)]


def records(path: Path) -> list[Record]:
    return [item for item in read(path) if isinstance(item, Record)]


@pytest.mark.parametrize("packed", [True, False])
def test_broken_lines_are_skipped_with_the_reason(tmp_path: Path, packed: bool) -> None:
    text = b"".join(
        [
            line(t=1, status=200, body="a"),
            b"{broken\n",
            b"\n",
            b"[1]\n",
            b'{"t": 1, "status": 200, "body": "\xff"}\n',
            line(status=200, body="a"),
            line(t=True, status=200, body="a"),
            b'{"t": NaN, "status": 200, "body": "a"}\n',
            line(t=10**400, status=200, body="a"),
            line(t=2, status="200", body="a"),
            line(t=3, status=200),
            b"[" * 100_000 + b"\n",
            line(t=4, status=0, error="x"),
            line(t=5, status=503, body=7),
            line(t=6, status=200, body="\ud800"),
        ]
    )
    path = tmp_path / "r"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert [record.t for record in records(path)] == [1, 4, 5, 6]
    assert len(reasons(path)) == 10
    assert [item.line for item in read(path) if isinstance(item, Skipped)] == [
        2,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
    ]


def test_a_file_cut_short_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "r.gz"
    whole = gzip.compress(b"".join(line(t=i, status=200, body=f"{i * 7919 % 9973}" * 50) for i in range(500)))
    path.write_bytes(whole[: len(whole) // 2])
    assert 100 < len(records(path)) < 400
    assert "cut short" in reasons(path)[-1]


def test_a_damaged_file_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "r.gz"
    whole = bytearray(gzip.compress(line(t=1, status=200, body="a")))
    whole[-6] ^= 0xFF  # the checksum
    path.write_bytes(bytes(whole) + b"rubbish")
    assert [record.t for record in records(path)] in ([1], [])
    assert "damaged" in reasons(path)[-1]


def test_a_long_line_is_skipped_and_the_next_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(line(t=1, status=200, body="a" * 5000) + line(t=2, status=200, body="b"))
    items = list(read(path, max_line=1000))
    assert [type(item) for item in items] == [Skipped, Record]


@pytest.mark.parametrize("packed", [True, False])
def test_a_page_as_text_is_a_recording_of_one(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "page.prom"
    path.write_bytes(gzip.compress(PAGE) if packed else PAGE)
    (record,) = records(path)
    assert (record.status, record.body) == (200, PAGE)
    assert record.t == pytest.approx(path.stat().st_mtime)


@pytest.mark.parametrize("name", ["missing", "empty", "folder"])
def test_a_file_that_is_none_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecordingError, match=name):
        read(tmp_path / name)


@given(st.binary(max_size=300))
def test_no_bytes_make_reading_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("r") / "r"
    for content in (b"x" + data, b"\x1f\x8b" + data, gzip.compress(data)):
        path.write_bytes(content)
        assert len(list(read(path))) <= 301


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    wanted = [
        Record(1.5, 200, PAGE, content_type="text/plain"),
        Record(2.5, 0, error="the connection was refused"),
        Record(3.5, 503, b"no"),
    ]
    with Writer(path) as writer:
        for record in wanted:
            writer.write(record)
        assert records(writer.part) == wanted, "an unfinished recording can be read"
        assert not path.exists()
    assert records(path) == wanted
    assert reasons(path) == []
    assert not writer.part.exists()


def test_nothing_is_overwritten_unless_wanted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(b"precious")
    with pytest.raises(RecordingError, match="--force"):
        Writer(path)
    with Writer(path, force=True) as writer:
        writer.write(Record(1, 200, PAGE))
    assert len(records(path)) == 1
    with pytest.raises(RecordingError, match="can't write"):
        Writer(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("URLError: [Errno 111] Connection refused", Failure.REFUSED),
        ("the connection was refused: nothing listens there", Failure.REFUSED),
        ("timed out", Failure.TIMEOUT),
        ("no whole answer within 0.9 s", Failure.TIMEOUT),
        ("[Errno -3] Temporary failure in name resolution", Failure.DNS),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", Failure.TLS),
        ("the answer is HTTP status 503", Failure.HTTP_STATUS),
        ("Connection reset by peer", Failure.CONNECTION),
    ],
)
def test_an_error_is_of_a_kind(text: str, kind: Failure) -> None:
    assert failure_of(text) is kind


def test_outcomes_are_those_of_live_scrapes() -> None:
    assert outcome_of(Record(1, 200, PAGE), interval_s=2) == Scrape(PAGE, 1, interval_s=2)
    refused = outcome_of(Record(1, 0, error="Connection refused"), interval_s=2)
    assert isinstance(refused, ScrapeError)
    assert refused.kind is Failure.REFUSED
    busy = outcome_of(Record(1, 503, b"no"), interval_s=2)
    assert isinstance(busy, ScrapeError)
    assert busy.kind is Failure.HTTP_STATUS


GPUS = GpuReading(
    (
        Gpu("0", "GPU-a", "NVIDIA H100", 0.25, 0.5, 1.0, 2.0**36, 2.0**30, ("serving/chat-0/vllm",)),
        Gpu("1/7", "GPU-b", sm_active=0.0),
    ),
    "dcgm",
    interval_s=10.0,
)


def test_readings_of_gpus_are_kept_beside_pages_and_failures(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    wanted = [
        Record(1.5, 200, PAGE, gpu=GPUS),
        Record(2.5, 0, error="refused", gpu=GPUS),
        Record(3.5, 200, PAGE),
    ]
    with Writer(path) as writer:
        for record in wanted:
            writer.write(record)
        writer.write(Record(4.5, 503, gpu=GpuReading(source="dcgm", reason="it is down")))
    *found, failed = records(path)
    assert found == wanted
    assert failed.gpu is None
    assert [outcome_of(record, interval_s=1).gpu for record in found] == [GPUS, GPUS, None]
    assert outcome_of(replace(failed, gpu=GPUS), interval_s=1).gpu == GPUS
    (first, *_) = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
    assert first["gpu"][1] == {"gpu": "1/7", "source": "dcgm", "uuid": "GPU-b", "sm_active": 0.0}
    assert first["gpu_interval"] == 10.0


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        (3, None),
        ([], None),
        ([None, 1, {"uuid": "x"}], None),
        (
            [{"gpu": "0", "sm_active": 1.5, "dram_active": "high", "utilization": True, "name": 4}],
            (Gpu("0"),),
        ),
        (
            [{"gpu": "0", "owners": "me"}, {"gpu": "1", "utilization": 1}],
            (Gpu("0"), Gpu("1", utilization=1.0)),
        ),
        ([{"gpu": "0", "sm_active": float("nan"), "memory_used_bytes": -1}], (Gpu("0"),)),
        ([{"gpu": "0", "memory_used_bytes": 10**400}], (Gpu("0"),)),
    ],
)
def test_of_readings_that_are_damaged_what_can_be_read_is(
    tmp_path: Path, gpu: object, found: tuple[Gpu, ...] | None
) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps({"t": 1, "status": 200, "body": "x 1\n", "gpu": gpu, "gpu_interval": "often"}))
    (record,) = records(path)
    assert (record.gpu and record.gpu.gpus) == found
    if record.gpu:
        assert (record.gpu.source, record.gpu.interval_s) == ("recording", 5.0)


FACTS = ServerInfo("0.32.0", {"tiny-llama": 2048})


def test_what_other_endpoints_said_is_kept_beside_the_page_after_which_it_was_known(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    wanted = [Record(1.5, 200, PAGE), Record(2.5, 200, PAGE, facts=FACTS), Record(3.5, 200, PAGE)]
    with Writer(path) as writer:
        for record in wanted:
            writer.write(record)
        writer.write(Record(4.5, 200, PAGE, facts=ServerInfo()))
    *found, nothing = records(path)
    assert found == wanted
    assert nothing.facts is None
    kept = [outcome_of(record, interval_s=1) for record in found]
    assert [one.facts for one in kept if isinstance(one, Scrape)] == [None, FACTS, None]
    (_, line, *_) = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
    assert line["facts"] == {"version": "0.32.0", "max_model_len": {"tiny-llama": 2048}}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (3, None),
        ({}, None),
        ({"version": 3, "max_model_len": []}, None),
        (
            {"version": "0.9.2", "max_model_len": {"a": "long", "b": True, "c": 0, "d": 10**400}},
            ServerInfo("0.9.2"),
        ),
        ({"version": "", "max_model_len": {"a": 4096, "b": None}}, ServerInfo(max_model_len={"a": 4096})),
    ],
)
def test_of_facts_that_are_damaged_what_can_be_read_is(
    tmp_path: Path, said: object, found: ServerInfo | None
) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps({"t": 1, "status": 200, "body": "x 1\n", "facts": said}))
    (record,) = records(path)
    assert record.facts == found


def test_the_spacing_is_the_median() -> None:
    items: list[Record | Skipped] = [
        *(Record(t, 200, PAGE) for t in (0, 2, 4, 30)),
        Skipped(5, "x"),
        Record(32, 200, PAGE),
    ]
    assert [item for item, _ in with_spacing(items)] == items
    assert {spacing for _, spacing in with_spacing(items)} == {2}
    assert [spacing for _, spacing in with_spacing([Record(0, 200, PAGE)])] == [1]
    assert list(with_spacing([])) == []


@pytest.mark.parametrize(("first", "then"), [(15, 1), (1, 15)])
def test_the_spacing_follows_a_pace_that_changes(first: int, then: int) -> None:
    """No scrape that came in time is further from the one before than a gap is, and every outage is."""
    steps = [first] * 70 + [then] * 70
    steps[100] = outage = 3 * then + 30
    times = [1e9 + sum(steps[:i]) for i in range(len(steps) + 1)]
    spacings = [spacing for _, spacing in with_spacing(Record(t, 200, PAGE) for t in times)]
    assert (spacings[0], spacings[-1]) == (first, then)
    for step, spacing in zip(steps, spacings[1:], strict=True):
        assert (step > gap_s(spacing)) == (step == outage)


def test_time_that_stands_still_is_not_waited_for() -> None:
    def endless() -> Iterator[Record]:
        while True:
            yield Record(1, 200, PAGE)

    assert next(with_spacing(endless()))[1] == 1


def test_nothing_is_left_of_a_recording_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    with Writer(path):
        pass
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"precious")
    with Writer(path, force=True) as writer:
        writer.write(Record(1, 0, error="refused"))
        writer.discard()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(path.name, b"precious")]


# -- clocks, pipes, full disks, long lines ---------------------------------------------------------------------------


def test_a_clock_that_is_put_back_does_not_hide_what_comes_after() -> None:
    times = [*range(100, 130, 2), *range(40, 60, 2), 0, 2]
    steps: list[ClockStep] = []
    found = [
        item.t
        for item, _ in with_spacing((Record(t, 200) for t in times), steps.append)
        if isinstance(item, Record)
    ]
    assert found == [100 + 2 * n for n in range(len(times))]
    assert [(step.t, step.back_s) for step in steps] == [(130, 88), (150, 58)]
    assert "went back by 88 s" in steps[0].text


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("body", [line(t=1, status=200, body="a") * 3, PAGE])
def test_pipes_are_read(tmp_path: Path, packed: bool, body: bytes) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    data = gzip.compress(body) if packed else body

    def feed() -> None:
        with pipe.open("wb", buffering=0) as out:
            for at in range(len(data)):  # a byte at a time
                out.write(data[at : at + 1])

    thread = threading.Thread(target=feed)
    thread.start()
    found = records(pipe)
    thread.join()
    file.write_bytes(data)
    assert [one.body for one in found] == [one.body for one in records(file)]


#: Writes until there is no more room, in a process of its own: the limit holds for everything that it writes.
_FILL = """
import os, resource, sys
from pathlib import Path
from kvwatch.recording import Record, WriteError, Writer
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
writer = Writer(Path(sys.argv[1]))
try:
    with writer:
        for t in range(1000):
            writer.write(Record(t, 200, os.urandom(400).hex().encode()))
except WriteError as error:
    print(writer.records, writer.part.exists(), error)
"""


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r.gz"
    done = subprocess.run(
        [sys.executable, "-c", _FILL, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    written, part, said = done.stdout.split(maxsplit=2)
    assert int(written) > 5
    assert (part, "can't write" in said) == ("False", True)
    assert [one.t for one in records(path)] == list(range(int(written)))


def test_records_held_ahead_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwatch.recording.pace._MAX_BUFFERED_BYTES", 1000)
    taken: list[int] = []

    def source() -> Iterator[Record]:
        for t in range(20):
            taken.append(t)
            yield Record(t, 200, b"x" * 400)

    most = 0
    for number, _ in enumerate(with_spacing(source())):
        most = max(most, len(taken) - number)
    assert most <= 3


def test_a_line_of_many_megabytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "r.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"t": 1, "status": 200, "body": "')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + line(t=2, status=200, body="a"))
    tracemalloc.start()
    found = list(read(path))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(one) for one in found] == [Skipped, Record]
    assert found[0] == Skipped(1, "longer than 32 MiB")
    assert most < 100 << 20
