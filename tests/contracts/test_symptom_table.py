"""What holds for every row of the symptom table. A message names the row, what is wrong, and the file to edit."""

import ast
import inspect
import re
import sys

import pytest

from kvwatch.core.judgement import symptoms
from kvwatch.core.judgement.symptoms import BY_ID, SYMPTOMS, THRESHOLDS, Severity, Symptom, limits_of
from kvwatch.core.judgement.symptoms import actions as shared
from kvwatch.core.judgement.symptoms.row import Scope
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Snapshot
from kvwatch.mixin.runbook_texts import OWN_PAGES, QUERIES
from kvwatch.mixin.runbooks import runbook_queries

#: The order in which to tune, where several apply: length, concurrency, precision of the cache, reuse of prefixes.
ORDER = (shared.CAP_OUTPUTS, shared.FEWER, shared.FP8, shared.SHARE, shared.ENABLE_PREFIX_CACHING)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
RESTART = "(needs a restart)"
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

rows = pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: row.id)


def file_of(row: Symptom) -> str:
    """The file to edit for a row."""
    (module,) = (one for one in symptoms._MODULES if row in one.ROWS)
    return module.__name__.replace(".", "/") + ".py"


@rows
def test_advice_comes_in_the_order_to_tune(row: Symptom) -> None:
    """Length before concurrency before precision before reuse, wherever several of them are advised."""
    places = [row.actions.index(action) for action in ORDER if action in row.actions]
    assert places == sorted(places), f"{file_of(row)}: sort the actions of {row.id} by ORDER of this test"


@rows
def test_a_row_has_all_that_a_person_needs(row: Symptom) -> None:
    """Title, meaning, causes, actions, runbook and origin are there, in their form."""
    title, runbook = row.title, row.runbook
    sentences = {"meaning": row.meaning, "runbook.impact": runbook.impact}
    sentences |= {f"actions[{i}]": action.text for i, action in enumerate(row.actions)}
    fragments = {"title": title, "when": row.when, "origin": row.origin, "runbook.worked": runbook.worked}
    fragments |= {f"causes[{i}]": cause for i, cause in enumerate(row.causes)}
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
        *(["actions are missing"] if not row.actions else []),
        *(["runbook.queries are missing"] if not runbook.queries else []),
    ]
    assert not wrong, f"{file_of(row)}: symptom {row.id}: {'; '.join(wrong)}"


@rows
def test_actions_name_options_that_there_are(row: Symptom) -> None:
    """Every option is one of vLLM's, is what the action is about, and is not shown to a v0 engine without it."""
    for action in row.actions:
        named = set(FLAG.findall(action.text))
        where = f"{file_of(row)}: symptom {row.id}: {action.text!r}"
        assert named <= BOTH | V1, f"{where} names {named - BOTH - V1}: check vLLM and add it to this test"
        assert not action.flag or action.flag in named, f"{where} does not name its flag {action.flag}"
        if named & V1:
            assert action.generations == ("v1",), f"{where} names an option that v0 lacks: add generations"


@rows
def test_an_action_says_when_it_needs_a_restart(row: Symptom) -> None:
    """Options of vLLM change only with a restart, which costs requests; only a server that is not up has none."""
    for action in row.actions:
        changes = bool(action.flag) and action is not _counting(row) and row.id != "startup_kv_failure"
        assert changes is (RESTART in action.text), (
            f"{file_of(row)}: symptom {row.id}: {action.text!r} must have {RESTART!r} if it changes an option"
        )


def _counting(row: Symptom) -> object:
    """The one action that names an option only to compare with it."""
    return next((action for action in row.actions if action.text.startswith("Count the LoRA adapters")), None)


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
    """The actions of a symptom that kvwatch shows for a server."""
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
    assert shown("sequence_limited", features=("lora",)).startswith("Count the LoRA adapters")
    assert "--prefix-match-unit" not in shown("prefix_cache_ineffective", block_size=16.0)
    assert "--prefix-match-unit" in shown(
        "prefix_cache_ineffective", block_size=16.0, mamba_block_size=1024.0
    )
