"""GPUs: what a DCGM exporter's page says of them, and how active they were over a window.

`tests/data/dcgm` has pages in the format of NVIDIA's dcgm-exporter (families, help texts, labels and their order,
number formats as it writes them); the numbers in them are made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.core.exposition import dcgm
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.judgement.state import State
from kvwatch.core.model.gpu import (
    MAX_GPUS,
    NO_DATA,
    Activity,
    Gpu,
    GpuActivity,
    GpuReading,
    GpuWindow,
    UnknownActivity,
    distinct_gpus,
    select_gpus,
)
from kvwatch.core.model.outcome import Failure, Scrape, ScrapeError
from tests.support.pages import Server
from tests.support.watch import Watch

PAGES = Path(__file__).parents[1] / "data" / "dcgm"
KUBERNETES = (PAGES / "kubernetes.prom").read_bytes()
MIG = (PAGES / "mig.prom").read_bytes()
MIB = 1 << 20


def read(page: bytes) -> GpuReading:
    return dcgm.read_gpus(dcgm.page_reader(), page, interval_s=5.0)


def without(page: bytes, family: str) -> bytes:
    """A page without a family."""
    lines = page.decode().splitlines(keepends=True)
    return "".join(line for line in lines if family not in re.split(r"[{ ]", line)[:3]).encode()


def with_value(page: bytes, family: str, value: str) -> bytes:
    """A page on which every sample of a family has this value."""
    return re.sub(rf"(?m)^({family}\{{.*\}}) .*$", rf"\1 {value}", page.decode()).encode()


# -- the page ------------------------------------------------------------------------------------------------------


def test_a_page_of_whole_gpus() -> None:
    found = read(KUBERNETES)
    assert (found.source, found.reason, found.interval_s) == ("dcgm", "", 5.0)
    assert found.gpus[0] == Gpu(
        label="0",
        uuid="GPU-58e8f5ea-13cc-013a-d88f-2bcf5ae8bc77",
        name="NVIDIA H100 80GB HBM3",
        sm_active=0.231847,
        dram_active=0.412903,
        utilization=1.0,
        memory_used_bytes=73576 * MIB,
        memory_free_bytes=7423 * MIB,
        owners=("serving/chat-0/vllm",),
    )
    assert [gpu.label for gpu in found.gpus] == ["0", "1", "2"]
    assert found.gpus[2].owners == (), "nobody holds it"


def test_a_divided_gpu_stands_as_its_parts() -> None:
    """Nothing counts twice, and what is not said of a part is not taken from the whole."""
    low, high, whole = read(MIG).gpus
    assert (low.label, high.label, whole.label) == ("0/1", "0/7", "1")
    assert low.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (low.sm_active, low.dram_active, low.memory_used_bytes) == (0.641115, 0.800339, 18664 * MIB)
    assert low.utilization == 0.994233, "utilisation of a part is that of its graphics engine"
    assert low.activity == Activity(0.800339, upper_bound=False)
    assert (whole.sm_active, whole.utilization) == (None, 0.88)
    assert whole.activity == Activity(0.88, upper_bound=True), "memory activity alone is no activity"


def test_the_exporters_default_counters_give_an_upper_bound() -> None:
    """They leave out SM activity."""
    (busy, *_) = read(without(KUBERNETES, "DCGM_FI_PROF_SM_ACTIVE")).gpus
    assert busy.activity == Activity(1.0, upper_bound=True)
    neither = without(without(KUBERNETES, "DCGM_FI_PROF_SM_ACTIVE"), "DCGM_FI_DEV_GPU_UTIL")
    assert read(neither).gpus[0].activity == Activity(0.981223, upper_bound=True)
    assert read(without(neither, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")).gpus[0].activity is None


@pytest.mark.parametrize(
    "blank",
    [
        "NaN",
        "+Inf",
        "-1",
        "2147483632",
        "9223372036854775792",
        "9223372036854775794",
        "9.223372036854776e+18",
        "140737488355328",
    ],
)
def test_what_dcgm_says_where_it_has_no_value_is_no_value(blank: str) -> None:
    for family, of in (
        ("DCGM_FI_PROF_SM_ACTIVE", "sm_active"),
        ("DCGM_FI_DEV_FB_USED", "memory_used_bytes"),
    ):
        assert [getattr(gpu, of) for gpu in read(with_value(KUBERNETES, family, blank)).gpus] == [None] * 3
    utilization = read(with_value(KUBERNETES, "DCGM_FI_DEV_GPU_UTIL", blank)).gpus[0].utilization
    assert utilization == 0.981223, "the graphics engine says it, too"


def test_a_ratio_beyond_one_is_one_or_none() -> None:
    just, far = (with_value(KUBERNETES, "DCGM_FI_PROF_SM_ACTIVE", value) for value in ("1.002", "1.2"))
    assert read(just).gpus[0].sm_active == 1.0
    assert read(far).gpus[0].sm_active is None


def test_a_time_sliced_gpu_is_one_gpu_of_several_owners() -> None:
    lines = KUBERNETES.decode().splitlines(keepends=True)
    shared = "".join(
        line + (line.replace("chat-0", "embed-0") if 'gpu="0"' in line else "") for line in lines
    )
    found = read(shared.encode()).gpus
    assert [gpu.label for gpu in found] == ["0", "1", "2"]
    assert found[0].owners == ("serving/chat-0/vllm", "serving/embed-0/vllm")


def test_a_series_that_says_two_things_says_nothing() -> None:
    line = next(one for one in KUBERNETES.decode().splitlines() if one.startswith("DCGM_FI_PROF_SM_ACTIVE{"))
    page = KUBERNETES + line.replace("0.231847", "0.9").encode() + b"\n"
    assert [gpu.sm_active for gpu in read(page).gpus] == [None, 0.3125, 0.0]


def test_gpus_of_several_hosts_have_labels_of_their_own() -> None:
    """A page that collects several exporters does not make two GPUs one, nor one label two."""
    other = KUBERNETES.replace(b"GPU-58e8f5ea", b"GPU-00000000").replace(b"gpu-node-1", b"gpu-node-2")
    samples = b"".join(line for line in other.splitlines(keepends=True) if b'gpu="0"' in line)
    labels = [gpu.label for gpu in read(KUBERNETES + samples).gpus]
    assert len(set(labels)) == 4
    assert labels[:2] == ["1", "2"]
    assert all(label.startswith("GPU-") for label in labels[2:])


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"", "empty"),
        (b"<html>hello</html>\n", "not as a DCGM exporter"),
        (b"# TYPE node_load1 gauge\nnode_load1 1\n", "not as a DCGM exporter"),
        (KUBERNETES[:-30], "line"),
        (KUBERNETES.rstrip(), "truncated"),
        (b'DCGM_FI_DEV_GPU_UTIL{gpu="0} 1\n', "line 1 can't be read"),
        (b"# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n", "no GPU"),
        (b'DCGM_FI_DEV_GPU_UTIL{Hostname="a"} 1\n', "no GPU"),
    ],
)
def test_a_page_that_can_not_be_read_is_a_reason(page: bytes, why: str) -> None:
    found = read(page)
    assert found.gpus == ()
    assert why in found.reason
    assert found.source == "dcgm"


def test_no_page_makes_more_gpus_than_a_host_can_have() -> None:
    lines = (f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}"}} 1\n' for n in range(1000))
    assert len(read("".join(lines).encode()).gpus) == MAX_GPUS


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_bytes_make_reading_fail(junk: bytes, at: int) -> None:
    lines = KUBERNETES.splitlines(keepends=True)
    found = read(b"".join(lines[:at]) + junk + b"".join(lines[at:]))
    assert found.gpus or found.reason


# -- which of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "labels", "absent"),
    [
        ([], ["0/1", "0/7", "1"], []),
        (["1"], ["1"], []),
        (["0"], ["0/1", "0/7"], []),
        (["0/7"], ["0/7"], []),
        (["GPU-7099682b-a20d-2bcc-74ab-b9060454d81e"], ["1"], []),
        (["gpu-7099682B-A20D-2BCC-74AB-B9060454D81E"], ["1"], []),
        (["GPU-34319582-d595-d1c7-d1d2-179bcfa61660/1"], ["0/1"], []),
        (["GPU-34319582-d595-d1c7-d1d2-179bcfa61660"], ["0/1", "0/7"], []),
        (["1", "5", "0/2"], ["1"], ["5", "0/2"]),
        (["7"], [], ["7"]),
    ],
)
def test_gpus_by_name(names: list[str], labels: list[str], absent: list[str]) -> None:
    found, lacking = select_gpus(read(MIG).gpus, names)
    assert ([gpu.label for gpu in found], list(lacking)) == (labels, absent)


def test_gpus_by_pod() -> None:
    gpus = read(KUBERNETES).gpus
    for name in ("pod:chat-0", "pod:serving/chat-0"):
        found, lacking = select_gpus(gpus, [name])
        assert ([gpu.label for gpu in found], lacking) == (["0", "1"], ())
    assert select_gpus(gpus, ["pod:other/chat-0"]) == ((), ("pod:other/chat-0",))
    assert select_gpus(gpus, ["pod:serving"]) == ((), ("pod:serving",))


@given(
    st.lists(st.builds(Gpu, label=st.sampled_from(["0", "0/1", "1"]), uuid=st.sampled_from(["", "a", "b"])))
)
def test_labels_are_distinct_and_order_is_irrelevant(gpus: list[Gpu]) -> None:
    found = distinct_gpus(gpus)
    labels = [gpu.label for gpu in found]
    assert len(set(labels)) == len(labels)
    assert sorted(labels) == sorted(gpu.label for gpu in distinct_gpus(reversed(gpus)))


# -- over time -----------------------------------------------------------------------------------------------------


def gpu(
    label: str = "0", sm: float | None = None, dram: float | None = None, util: float | None = None
) -> Gpu:
    return Gpu(label=label, sm_active=sm, dram_active=dram, utilization=util)


def taken(
    readings: Iterable[tuple[float, GpuReading]], wanted: tuple[str, ...] = (), interval_s: float = 1.0
) -> GpuWindow:
    window = GpuWindow()
    for now, reading in readings:
        window = window.with_reading(reading, now, wanted=wanted, interval_s=interval_s, keep_s=600.0)
    return window


def steady(*gpus: Gpu, until: int = 300, every: int = 5) -> list[tuple[float, GpuReading]]:
    return [(float(t), GpuReading(gpus, "dcgm")) for t in range(0, until + 1, every)]


def known(found: GpuActivity | UnknownActivity) -> GpuActivity:
    assert isinstance(found, GpuActivity), found
    return found


def reason(found: GpuActivity | UnknownActivity) -> str:
    assert isinstance(found, UnknownActivity), found
    return found.reason


def test_activity_is_the_larger_of_sm_and_memory_activity() -> None:
    """Utilisation of 100 % beside it proves nothing."""
    found = known(taken(steady(gpu(sm=0.2, dram=0.3, util=1.0))).activity(300, 300))
    assert found.mean == pytest.approx(0.3)
    assert (found.upper_bound, found.source) == (False, "dcgm")
    assert found.covered_s == pytest.approx(300)


def test_utilisation_alone_is_an_upper_bound() -> None:
    found = known(taken(steady(gpu(util=0.25))).activity(300, 300))
    assert found.mean == pytest.approx(0.25)
    assert found.upper_bound is True


def test_several_gpus_give_their_mean_and_the_busiest() -> None:
    found = known(taken(steady(gpu("0", sm=0.2), gpu("1", sm=0.6))).activity(300, 300))
    assert found.mean == pytest.approx(0.4)
    assert found.highest == pytest.approx(0.6)
    assert found.by_gpu == {"0": pytest.approx(0.2), "1": pytest.approx(0.6)}
    assert found.upper_bound is False
    for mixed in ((gpu("0", sm=0.2), gpu("1", util=0.6)), (gpu("0", util=0.6), gpu("1", sm=0.2))):
        assert known(taken(steady(*mixed)).activity(300, 300)).upper_bound is True


def test_only_the_gpus_of_the_server_count() -> None:
    readings = steady(gpu("0", sm=0.2), gpu("1", sm=0.6))
    found = known(taken(readings, wanted=("1",)).activity(300, 300))
    assert found.by_gpu == {"1": pytest.approx(0.6)}


def test_a_gpu_that_is_not_there_is_named_and_nothing_is_told_of_the_rest() -> None:
    window = taken(steady(gpu("0", sm=0.2)), wanted=("0", "3"))
    assert reason(window.activity(300, 300)) == "no GPU matches 3 (setting gpus); available: 0"
    assert [one.label for one in window.current(300)] == ["0"]
    nothing = taken(steady(gpu("0", sm=0.2)), wanted=("3",))
    assert nothing.current(300) == ()
    assert "no GPU matches 3" in nothing.why_unknown(300)


def test_the_mean_is_over_time_not_over_readings() -> None:
    """Many readings in a short time weigh no more than few in a long one."""
    slow = [(float(t), GpuReading((gpu(sm=0.1),), "dcgm")) for t in range(0, 241, 10)]
    fast = [(240 + t / 10, GpuReading((gpu(sm=0.9),), "dcgm")) for t in range(1, 601)]
    found = known(taken(slow + fast).activity(300, 300))
    assert found.mean == pytest.approx((240 * 0.1 + 60 * 0.9) / 300, abs=0.01)


def test_what_lies_before_the_window_does_not_count() -> None:
    readings = steady(gpu(sm=1.0), until=300) + [
        (300.0 + t, GpuReading((gpu(sm=0.0),), "dcgm")) for t in range(5, 61, 5)
    ]
    late = known(taken(readings).activity(360, 57))
    assert (late.mean, late.covered_s) == (0.0, 57.0)
    assert known(taken(readings).activity(360, 120)).mean == pytest.approx(0.5, abs=0.03)


def test_a_gap_covers_nothing() -> None:
    """Between readings more than three intervals apart nobody looked."""
    readings = [*steady(gpu(sm=1.0), until=100), *((200 + t, r) for t, r in steady(gpu(sm=0.0), until=100))]
    found = known(taken(readings).activity(300, 300))
    assert found.covered_s == pytest.approx(200)
    assert found.mean == pytest.approx(0.5)


def test_too_little_of_a_window_tells_nothing() -> None:
    window = taken(steady(gpu(sm=0.2), until=100))
    assert reason(window.activity(100, 300)) == "GPU data covers 100 s of the last 300 s"
    assert known(window.activity(100, 200)).mean == pytest.approx(0.2)
    assert reason(taken(steady(gpu(sm=0.2), until=0)).activity(0, 300)).startswith("GPU data covers 0 s")


def test_old_readings_are_none() -> None:
    """After three intervals, of the reader or of what brings the readings, whichever is longer."""
    window = taken(steady(gpu(sm=0.2)))
    assert len(window.current(315)) == 1
    assert window.current(316) == ()
    assert window.why_unknown(316) == "the newest GPU data is 16 s old"
    assert reason(window.activity(316, 300)) == "the newest GPU data is 16 s old"
    slow = taken(steady(gpu(sm=0.2), every=15), interval_s=15.0)
    assert len(slow.current(345)) == 1
    assert known(slow.activity(300, 300)).covered_s == pytest.approx(300)


def test_the_age_of_a_reading_counts() -> None:
    window = taken([(100.0, GpuReading((gpu(sm=0.2),), "dcgm", age_s=4.0))])
    assert window.at == 96.0
    assert window.age_s(100.0) == 4.0
    assert window.current(112) == ()
    older = window.with_reading(
        GpuReading((gpu(sm=0.2),), "dcgm", age_s=50.0), 101.0, wanted=(), interval_s=1, keep_s=600
    )
    assert older.at == 96.0, "time does not run backwards"


def test_a_failed_reading_hides_the_numbers_at_once_but_not_the_window() -> None:
    down = GpuReading(source="dcgm", reason="refused: nothing listens there")
    window = taken([*steady(gpu(sm=0.2)), (305.0, down)])
    assert window.current(306) == ()
    assert window.why_unknown(306) == "refused: nothing listens there"
    assert known(window.activity(306, 300)).mean == pytest.approx(0.2)
    assert (
        reason(window.activity(320, 300)) == "the newest GPU data is 20 s old: refused: nothing listens there"
    )
    assert window.outcomes == {"ok": 61, "failed": 1}
    again = window.with_reading(
        GpuReading((gpu(sm=0.4),), "dcgm"), 310.0, wanted=(), interval_s=1, keep_s=600
    )
    assert [one.sm_active for one in again.current(310)] == [0.4]
    assert again.why_unknown(310) == ""


def test_without_any_source_it_says_how_to_have_one() -> None:
    assert reason(GpuWindow().activity(0, 300)) == NO_DATA
    assert "gpu_url" in NO_DATA
    assert "kvwatch[nvml]" in NO_DATA
    window = taken([(0.0, GpuReading(reason="it is off"))])
    assert reason(window.activity(1e6, 300)) == "it is off"
    assert window.outcomes == {}, "what is not read is not counted"


def test_a_gpu_of_which_nothing_tells_the_activity_is_named() -> None:
    window = taken(steady(gpu("0", sm=0.2), gpu("1", dram=0.9)))
    assert "of GPU 1 is exposed" in reason(window.activity(300, 300))


def test_times_in_which_a_gpu_could_not_be_told_are_not_covered() -> None:
    readings = steady(gpu("0", sm=0.2), gpu("1", sm=0.4))
    blind = [(305.0 + t, r) for t, r in steady(gpu("0", sm=0.2), gpu("1"), until=95)]
    seen = [(405.0 + t, r) for t, r in steady(gpu("0", sm=0.2), gpu("1", sm=0.4), until=95)]
    found = known(taken(readings + blind + seen).activity(500, 400))
    assert found.mean == pytest.approx(0.3)
    assert 280 < found.covered_s < 310


def test_no_more_is_kept_than_is_asked_for() -> None:
    assert len(taken(steady(gpu(sm=0.2), until=20_000)).samples) < 200


# -- through the seam ----------------------------------------------------------------------------------------------


def test_outcomes_bring_readings_and_the_state_keeps_them() -> None:
    """Good pages and failures alike; an outcome without one leaves what is known."""
    watch = Watch(Policy(gpus=("0",)))
    reading = GpuReading((gpu("0", sm=0.2), gpu("1", sm=0.9)), "dcgm")
    page = Server().page.encode()
    watch.outcome(Scrape(page, 1.0, gpu=reading))
    assert [one.label for one in watch.state.gpu.current(watch.now)] == ["0"]
    before = watch.state.gpu
    watch.outcome(Scrape(page, 2.0))
    assert watch.state.gpu is before
    watch.outcome(ScrapeError(Failure.REFUSED, "nothing there", 3.0, gpu=reading))
    assert watch.state.gpu.outcomes == {"ok": 2, "failed": 0}
    assert watch.state.error is not None
    assert watch.state.error.gpu is None, "the reading is kept in one place"
    watch.outcome(Scrape(b"\xff not a page", 4.0, gpu=reading))
    assert watch.state.up is False
    assert watch.state.gpu.outcomes["ok"] == 3


def test_minutes_of_outcomes_give_the_activity() -> None:
    watch = Watch(Policy(gpus=("1",)))
    page = Server().page.encode()
    state: State = watch.state
    for second in range(120):
        due = second % 5 == 0
        reading = GpuReading((gpu("0", sm=1.0), gpu("1", sm=0.25, util=1.0)), "dcgm") if due else None
        state = watch.outcome(Scrape(page, float(second), gpu=reading))
    found = known(state.gpu.activity(watch.now, 60.0))
    assert found.mean == pytest.approx(0.25)
    assert found.upper_bound is False
