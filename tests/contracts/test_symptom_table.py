"""What holds for every row of the symptom table."""

import itertools
import re

import pytest

from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS, Severity, Symptom
from kvwatch.core.judgement.symptoms import actions as shared
from kvwatch.core.judgement.symptoms.row import Scope
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Snapshot

#: The order in which to tune, where several apply: length, concurrency, precision of the cache, reuse of prefixes.
ORDER = (shared.LENGTH, shared.FEWER, shared.FP8, shared.SHARE, shared.ENABLE_PREFIX_CACHING)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
#: Options of `vllm serve` that actions name, each looked up in the releases: of every generation, and of v1 alone.
BOTH = {
    "--disable-log-stats",
    "--enable-prefix-caching",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--max-loras",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
}
V1 = {
    "--kv-offloading-size",
    "--mamba-cache-mode",
    "--max-num-queued-reqs",
    "--prefix-match-unit",
    "--watermark",
}


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_advice_comes_in_the_order_to_tune(row: Symptom) -> None:
    """Length before concurrency before precision before reuse, wherever several of them are advised."""
    places = [row.actions.index(action) for action in ORDER if action in row.actions]
    assert places == sorted(places)


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_a_row_says_all_that_a_person_needs(row: Symptom) -> None:
    """Title, meaning, causes, actions and origin are there, as sentences of their kind."""
    assert row.title[0].isupper() or row.title.startswith(("--", "vLLM"))
    assert not row.title.endswith(".")
    assert row.meaning.endswith(".")
    assert row.origin
    assert row.causes
    assert row.actions
    assert not [text for text in row.causes if text.endswith(".")]


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_actions_name_options_that_there_are(row: Symptom) -> None:
    """Every option is one of vLLM's, is the one that the action is about, and is not shown to a v0 engine without"
    " it."""
    for action in row.actions:
        named = set(FLAG.findall(action.text))
        assert named <= BOTH | V1, action.text
        assert not action.flag or action.flag in named or action.flag == "--disable-log-stats"
        if named & V1:
            assert action.generations == ("v1",), action.text


def test_causes_and_effects_are_rows_and_go_one_way() -> None:
    """What a row accounts for is in the table, and no chain of causes leads back to its beginning."""
    for row in SYMPTOMS:
        assert set(row.explains) <= set(BY_ID), row.id
        reached, new = set(), set(row.explains)
        while new:
            reached |= new
            new = {effect for cause in new for effect in BY_ID[cause].explains} - reached
        assert row.id not in reached


def test_what_wakes_someone_is_not_put_down_to_what_nobody_is_told_of() -> None:
    """A critical or warning symptom is accounted for by one that tells at least someone, but where that is the"
    " point."""
    quiet = {
        (cause.id, effect)
        for cause in SYMPTOMS
        for effect in cause.explains
        if cause.severity is Severity.INFO and BY_ID[effect].severity is not Severity.INFO
    }
    assert quiet == {("cold_start", "ttft_high")}


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)
def test_the_condition_in_words_has_the_thresholds_in_force(row: Symptom) -> None:
    """Every threshold named in it is one of the row's, and it shows the values that are set."""
    named = re.findall(r"\{(\w+)\}", row.when)
    own = {threshold.name.partition(".")[2] for threshold in row.thresholds} | {"for", "keep"}
    assert set(named) <= own
    said = row.fires_when({f"{row.id}.{name}": 0.123 for name in own})
    assert said.count("0.123") == len(named)
    assert "{" not in said


def test_rows_are_of_one_kind_each() -> None:
    """Ids are unique, and thresholds carry the id of their row."""
    assert len(BY_ID) == len(SYMPTOMS)
    for row, threshold in itertools.chain.from_iterable(((r, t) for t in r.thresholds) for r in SYMPTOMS):
        assert threshold.name.startswith(f"{row.id}.")
        assert threshold.low <= threshold.default <= threshold.high
    assert {row.scope for row in SYMPTOMS} == set(Scope)


def shown(symptom: str, *, generation: str = "v1", features: tuple[str, ...] = (), **config: object) -> str:
    """The actions of a symptom that a server is told."""
    snapshot = Snapshot(
        EngineKey("t"),
        generation=generation,
        features=frozenset(features),
        config=CacheConfig(**config, known=True),  # type: ignore[arg-type]
    )
    return "\n".join(action.text for action in BY_ID[symptom].actions_for(snapshot))


def test_advice_that_was_taken_is_not_given() -> None:
    """What the server already does, or cannot do, is not among the actions."""
    assert "fp8" in shown("kv_exhausted", cache_dtype="auto")
    assert "fp8" not in shown("kv_exhausted", cache_dtype="fp8_e4m3")
    assert "--gpu-memory-utilization" in shown("kv_exhausted", gpu_memory_utilization=0.6)
    assert "--gpu-memory-utilization" not in shown("kv_exhausted", gpu_memory_utilization=0.95)
    assert "--enable-prefix-caching" in shown("prefill_limited", enable_prefix_caching=False)
    assert "--enable-prefix-caching" not in shown("prefill_limited", enable_prefix_caching=True)
    assert "--watermark" not in shown("kv_thrashing")
    assert "--watermark" in shown("kv_thrashing", features=("watermark",))
    assert "--watermark" not in shown("kv_thrashing", generation="v0", features=("watermark",))
    assert "--max-loras" not in shown("sequence_limited")
    assert shown("sequence_limited", features=("lora",)).startswith("count the LoRA adapters")
    assert "--prefix-match-unit" not in shown("prefix_cache_ineffective", block_size=16.0)
    assert "--prefix-match-unit" in shown(
        "prefix_cache_ineffective", block_size=16.0, mamba_block_size=1024.0
    )
