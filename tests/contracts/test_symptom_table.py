"""What holds for every row of the symptom table. A message names the row, what is wrong, and the file to edit."""

import ast
import inspect
import re
import sys

import pytest

from kvwatch.core.judgement import symptoms
from kvwatch.core.judgement.advice.choose import choose
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS, THRESHOLDS, Severity, Symptom, limits_of
from kvwatch.core.judgement.symptoms.row import Scope
from kvwatch.core.model.snapshot import CacheConfig
from kvwatch.mixin.runbook_texts import OWN_PAGES, QUERIES
from kvwatch.mixin.runbooks import runbook_queries

RELIEF = (
    "shed_load",
    "max_num_seqs",
    "kv_cache_dtype",
    "watermark",
    "gpu_memory_utilization",
    "tensor_parallel_size",
)
"""Levers against a cache that is too small, by relief against cost. vLLM's guidance on preemption (its documentation,
configuration/optimization) names utilization, fewer sequences and tensor parallelism, unranked; utilization comes
behind what relieves more, because its last few per cent are a small step that can fail with CUDA OOM."""
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
    "--tensor-parallel-size",
}
V1 = {
    "--kv-offloading-size",
    "--mamba-cache-mode",
    "--max-num-queued-reqs",
    "--prefix-match-unit",
    "--watermark",
}

CACHE_ROWS = {"kv_thrashing", "kv_exhausted", "kv_near_full", "long_request_hogs_cache"}

rows = pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)


def file_of(row: Symptom) -> str:
    """The file to edit for a row."""
    (module,) = (one for one in symptoms._MODULES if row in one.ROWS)
    return module.__name__.replace(".", "/") + ".py"


@rows
def test_levers_come_by_relief_against_cost(row: Symptom) -> None:
    """The same order in every row; `choose` puts those without a restart first."""
    places = [RELIEF.index(lever.id) for lever in row.levers if lever.id in RELIEF and row.id in CACHE_ROWS]
    assert places == sorted(places), f"{file_of(row)}: sort the levers of {row.id} by RELIEF of this test"


@rows
def test_a_length_limit_is_never_offered_for_blocks(row: Symptom) -> None:
    """vLLM takes blocks as tokens come: a lower --max-model-len frees none (v1/core/kv_cache_utils.py)."""
    if row.id in CACHE_ROWS:
        assert "--max-model-len" not in {lever.option for lever in row.levers}, f"{file_of(row)}: {row.id}"


@rows
def test_a_row_has_all_that_a_person_needs(row: Symptom) -> None:
    """Title, meaning, causes, levers, runbook and origin are there, in their form."""
    title, runbook = row.title, row.runbook
    sentences = {"meaning": row.meaning, "runbook.impact": runbook.impact}
    fragments = {"title": title, "when": row.when, "origin": row.origin, "runbook.worked": runbook.worked}
    fragments |= {f"causes[{i}]": cause for i, cause in enumerate(row.causes)}
    fragments |= {f"levers[{i}] ({lever.id})": lever.general_text for i, lever in enumerate(row.levers)}
    wrong = [
        *(f"{name} is empty" for name, text in (sentences | fragments).items() if not text),
        *(f"{name} must end with a full stop" for name, text in sentences.items() if text[-1:] != "."),
        *(f"{name} must not end with a full stop" for name, text in fragments.items() if text[-1:] == "."),
        *(
            f"{name} must begin with a capital, an option or vLLM"
            for name, text in (sentences | fragments).items()
            if name not in {"when", "origin", "runbook.worked"}
            if not (text[:1].isupper() or text.startswith(("--", "vLLM")))
        ),
        *(["title is longer than 60 characters"] if len(title) > 60 else []),
        *(["causes are missing"] if not row.causes else []),
        *(["levers are missing"] if not row.levers else []),
        *(["runbook.queries are missing"] if not runbook.queries else []),
    ]
    assert not wrong, f"{file_of(row)}: symptom {row.id}: {'; '.join(wrong)}"


@rows
def test_levers_name_options_that_there_are(row: Symptom) -> None:
    """Every option is one of vLLM's, is what the lever is about, needs a restart, and is not shown to a v0 engine
    without it."""
    for lever in row.levers:
        named = set(FLAG.findall(lever.text))
        where = f"{file_of(row)}: symptom {row.id}: lever {lever.id}"
        assert named <= BOTH | V1, f"{where} names {named - BOTH - V1}: check vLLM and add it to this test"
        assert not lever.option or lever.option in named, f"{where} does not name its option {lever.option}"
        assert bool(lever.option) <= lever.restart, f"{where} changes an option: set restart"
        if named & V1:
            assert lever.generations == ("v1",), f"{where} names an option that v0 lacks: add generations"


@rows
def test_an_amount_has_a_function(row: Symptom) -> None:
    for lever in row.levers:
        where = f"{file_of(row)}: symptom {row.id}: lever {lever.id}"
        assert ("{value}" in lever.text) <= (lever.value is not None), f"{where} shows an amount: add value"


@rows
def test_the_queries_of_a_runbook_exist(row: Symptom) -> None:
    assert len(runbook_queries(row.id, row.runbook)) == len(row.runbook.queries)


def test_every_query_is_in_a_runbook() -> None:
    runbooks = [*(row.runbook for row in SYMPTOMS), *(own.runbook for own in OWN_PAGES.values())]
    unused = QUERIES.keys() - {name for runbook in runbooks for name in runbook.queries}
    assert not unused, (
        f"kvwatch/mixin/runbook_texts.py: no runbook names the queries {sorted(unused)}: remove them"
    )


def test_causes_and_effects_are_rows_and_go_one_way() -> None:
    """What a row explains is in the table, and no chain of causes leads back to its beginning."""
    for row in SYMPTOMS:
        unknown = set(row.explains) - set(BY_ID)
        assert not unknown, f"{file_of(row)}: {row.id} explains {sorted(unknown)}, which are no symptoms"
        reached, new = set(), set(row.explains)
        while new:
            reached |= new
            new = {effect for cause in new for effect in BY_ID[cause].explains} - reached
        assert row.id not in reached, f"{file_of(row)}: {row.id} explains itself through others"


def test_no_alarm_is_suppressed_by_mere_information() -> None:
    """A critical or warning symptom is explained by one that notifies someone too, except where that is the point."""
    quiet = {
        (cause.id, effect)
        for cause in SYMPTOMS
        for effect in cause.explains
        if cause.severity is Severity.INFO and BY_ID[effect].severity is not Severity.INFO
    }
    assert quiet == {("cold_start", "ttft_high")}


@rows
def test_the_condition_in_words_has_the_thresholds_in_force(row: Symptom) -> None:
    """Every threshold named in it is one of the row's, and it shows the values in force, shares as percentages."""
    named = re.findall(r"\{(\w+)\}", row.when)
    own = {threshold.name for threshold in row.thresholds} | {"for", "keep"}
    unknown = set(named) - own
    assert not unknown, (
        f"{file_of(row)}: `when` of {row.id} names {sorted(unknown)}: add them to its thresholds"
    )
    text = row.fires_when({f"{row.id}.{name}": 0.125 for name in own})
    assert text.count("0.125") + text.count("12.5 %") == len(named)
    assert "{" not in text


def test_rows_are_of_one_kind_each() -> None:
    """Ids and thresholds are unique, defaults are within bounds, and both scopes are there."""
    assert len(BY_ID) == len(SYMPTOMS)
    assert len({threshold.name for threshold in THRESHOLDS}) == len(THRESHOLDS)
    for row in SYMPTOMS:
        for threshold in row.thresholds:
            assert "." not in threshold.name, f"{file_of(row)}: write {threshold.name!r} without the row's id"
            assert threshold.low <= threshold.default <= threshold.high, f"{file_of(row)}: {threshold.name}"
    assert {row.scope for row in SYMPTOMS} == set(Scope)


def limits_read(module: str) -> set[str]:
    """The names of thresholds that the judges of a module read."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    return {
        str(node.slice.value)
        for node in reads
        if isinstance(node.slice, ast.Constant) and ast.unparse(node.value) in {"limits", "view.limits"}
    }


def test_judges_read_thresholds_that_there_are() -> None:
    """And every threshold of a row is read."""
    known = {threshold.name for threshold in THRESHOLDS}
    read: set[str] = set()
    for module in symptoms._MODULES:
        names = limits_read(module.__name__)
        where = module.__name__.replace(".", "/") + ".py"
        assert names <= known, (
            f"{where} reads {sorted(names - known)}: add them to the thresholds of their row"
        )
        read |= names
    own = {threshold.name for row in SYMPTOMS for threshold in row.named_thresholds()}
    built = {
        "sequence_limited.share",
        "prefill_limited.share",
        "requests_deferred.share",
    }  # one judge for three
    assert own - read == built, f"no judge reads {sorted(own - read - built)}: remove them from their rows"


def test_a_wrong_name_of_a_threshold_is_a_clear_error() -> None:
    with pytest.raises(
        KeyError, match=r"no threshold 'kv_thrashing.preemption'; similar names: kv_thrashing.preem"
    ):
        limits_of({})["kv_thrashing.preemption"]


def shown(symptom: str, *, generation: str = "v1", features: tuple[str, ...] = (), **config: object) -> str:
    """The actions of a symptom that kvwatch shows for a server under load, before the limit on their number."""
    row = BY_ID[symptom]
    situation = Situation(
        symptom,
        generation=generation,
        features=frozenset(features),
        config=CacheConfig(**config, known=True),  # type: ignore[arg-type]
        backlogged=True,
        suffering=True,
    )
    found = [choose((lever,), (), situation) for lever in row.levers]
    return "\n".join(action.text for advice in found for action in advice.actions)


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
    assert shown("sequence_limited", features=("lora",)).startswith("Count the LoRA adapters")
    assert "--prefix-match-unit" not in shown("prefix_cache_ineffective", block_size=16.0)
    assert "--prefix-match-unit" in shown(
        "prefix_cache_ineffective", block_size=16.0, mamba_block_size=1024.0
    )
