"""The `/metrics` of kvwatch, whole, as a Prometheus would see it: HELP, TYPE, labels and values.

To accept a change: `KVWATCH_REGENERATE=1 .venv/bin/pytest tests/golden`, look at the diff, commit it.
Regenerating fails the run, so that a stale golden can't slip through.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from kvwatch.core.export.catalogue import METRICS, PREFIX, MetricSource, NotificationCounts
from kvwatch.core.exposition import dcgm
from kvwatch.core.judgement.pipeline import advance
from kvwatch.core.judgement.state import initial
from kvwatch.core.model.gpu import GpuReading
from kvwatch.core.model.log_verdict import LogVerdict
from kvwatch.core.model.outcome import Failure, ScrapeError
from kvwatch.sidecar.serving.collector import registry_of
from tests.support.replayed import Replayed, replayed

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "replay" / "recordings"
CAPTURES = HERE.parent / "captures"
CASES = {
    "saturated": ("0.32.0--c-kv-saturation", 70),
    "data-parallel": ("0.32.0--j-data-parallel-2", 70),
    "v0": ("0.8.5-v0--c-kv-saturation", 50),
    "down": ("0.32.0--o-engine-killed", 39),
}
GPU_PAGE = HERE.parent / "data" / "dcgm" / "mig.prom"


def exposition(store: Replayed) -> str:
    text = generate_latest(registry_of(store, store)).decode()
    ours = (line for line in text.splitlines() if f"{PREFIX}process_" not in line)
    return "\n".join(line for line in ours if not line.startswith(f"{PREFIX}build_info{{")) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_exposition_is_as_committed(case: str) -> None:
    """What Prometheus gets after a known recording is what is committed."""
    golden = HERE / f"{case}.prom"
    text = exposition(replayed(*CASES[case]))
    if os.environ.get("KVWATCH_REGENERATE"):
        golden.write_text(text, encoding="utf-8")
        pytest.fail(f"{golden.name} was written anew: look at the diff, then run without KVWATCH_REGENERATE")
    assert text == golden.read_text(encoding="utf-8")


def with_gpus() -> Replayed:
    """A target beside which a DCGM exporter is read, but for the last time; its log says why it is down."""
    log = LogVerdict("no_room_for_any_block", "high", "Nothing is left of the budget.", ("free the GPU",))
    reading = dcgm.read_gpus(dcgm.page_reader(), GPU_PAGE.read_bytes(), interval_s=5.0)
    state = initial("vllm")
    for t, gpu in ((0.0, GpuReading(source="dcgm", reason="down")), (5.0, reading)):
        state, _ = advance(state, ScrapeError(Failure.REFUSED, "connection refused", t, gpu=gpu, log=log), t)
    return Replayed(state, 2)


def test_gpus_are_exported_as_committed() -> None:
    """Of each GPU what is known of it, whether vLLM answers or not; a reading that is too old gives nothing."""
    golden = HERE / "gpus.prom"
    store = with_gpus()
    lines = [line for line in exposition(store).splitlines(keepends=True) if f"{PREFIX}gpu_" in line]
    if os.environ.get("KVWATCH_REGENERATE"):
        golden.write_text("".join(lines), encoding="utf-8")
        pytest.fail(f"{golden.name} was written anew: look at the diff, then run without KVWATCH_REGENERATE")
    assert "".join(lines) == golden.read_text(encoding="utf-8")
    state = replace(store.state, now=5.0 + 15.1)
    old = exposition(Replayed(state, 2)).splitlines()
    left = {line.split("{")[0] for line in old if line.startswith(f"{PREFIX}gpu_")}
    assert left == {f"{PREFIX}gpu_readings_total"}


def test_the_process_is_exported_as_committed() -> None:
    """What kvwatch costs, by name, type and meaning; the values are those of the moment."""
    golden = HERE / "process.prom"
    store = replayed(*CASES["v0"])
    text = generate_latest(registry_of(store, store)).decode()
    lines = [
        line for line in text.splitlines(keepends=True) if line[0] == "#" and f"{PREFIX}process_" in line
    ]
    if os.environ.get("KVWATCH_REGENERATE"):
        golden.write_text("".join(lines), encoding="utf-8")
        pytest.fail(f"{golden.name} was written anew: look at the diff, then run without KVWATCH_REGENERATE")
    assert "".join(lines) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", [*CASES, "gpus"])
def test_what_is_not_fleeting_is_read_off_the_state_alone(case: str) -> None:
    """Neither time nor the poller's counts change it, so that it can be written once for a state."""
    state = (replayed(*CASES[case]) if case in CASES else with_gpus()).state
    now, later = (
        MetricSource(state, state.now or 0.0),
        MetricSource(state, (state.now or 0.0) + 1000.0, 7, 8, 9),
    )
    changed = {row.name for row in METRICS if list(row.samples(now)) != list(row.samples(later))}
    assert changed
    assert changed <= {row.name for row in METRICS if row.volatile}


def test_what_is_read_off_no_target_is_fleeting() -> None:
    """Deliveries and reloads come without a poll."""
    row = next(row for row in METRICS if row.name == "up")
    others = [one for one in METRICS if (one.deliveries, one.reloads) != (row.deliveries, row.reloads)]
    assert others
    assert all(one.volatile for one in others)


@pytest.mark.parametrize("case", [*CASES, "gpus"])
def test_promtool_is_content(case: str) -> None:
    """`promtool check metrics` has nothing to say, not even a lint warning."""
    store = replayed(*CASES[case]) if case in CASES else with_gpus()
    text = generate_latest(registry_of(store, store))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_every_row_of_the_catalogue_has_a_sample_somewhere() -> None:
    """No metric is declared that no recording ever fills, but for those that need what no recording has."""
    told = replace(with_gpus(), sent=(NotificationCounts("am", {"ok": 3, "refused": 1}, 1_700_000_000.0),))
    seen = {re.split("[{ ]", line)[0] for line in exposition(told).splitlines() if line[0] != "#"}
    recordings = sorted((*RECORDINGS.glob("*.jsonl.gz"), *CAPTURES.glob("*/*.jsonl.gz")))
    for recording in recordings:
        lines = exposition(replayed(recording, 90)).splitlines()
        seen |= {re.split("[{ ]", line)[0] for line in lines if not line.startswith("#")}
    stems = {name.removesuffix(suffix) for name in seen for suffix in ("", "_bucket", "_sum", "_count")}
    unseen = {row.name for row in METRICS if row.full_name not in stems}
    assert unseen == set(NEVER_RECORDED)


#: Metrics that no recording fills, and why.
NEVER_RECORDED = {
    "server_info": "recordings hold /metrics only, not /version",
    "max_model_len_tokens": "recordings hold /metrics only, not /v1/models",
    "requests_kv_fetch": "needs a KV connector in a consumer role",
    "kv_offload_loaded_bytes_total": "needs --kv-offloading-size, and so a GPU",
    "kv_offload_stored_bytes_total": "needs --kv-offloading-size, and so a GPU",
    "kv_offload_skipped_stores_total": "needs --kv-offloading-size, and so a GPU",
    "external_prefix_cache_hit_ratio": "needs a KV connector",
    "corrupted_requests_total": "needs VLLM_COMPUTE_NANS_IN_LOGITS",
    "prompt_tokens_recomputed_total": "vLLM 0.16 to 0.19 only",
}


def test_a_target_that_is_down_shows_none_of_vllms_signals() -> None:
    """`up` is 0, the signals are gone, and what kvwatch counts itself goes on."""
    text = exposition(replayed(*CASES["down"]))
    assert f'\n{PREFIX}up{{target="vllm"}} 0.0\n' in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in samples if line.startswith(f"{PREFIX}requests_running")]
    assert not [line for line in samples if line.startswith(f"{PREFIX}kv_cache_usage_ratio")]
    assert [
        line
        for line in samples
        if line.startswith(f"{PREFIX}regime_seconds_total") and 'regime="down"' in line
    ]
