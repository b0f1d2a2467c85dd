"""The table of vLLM's names, held against what each release exposes and against recorded pages."""

import itertools
import json
import pickle
from functools import cache
from typing import Any

import pytest

from kvwatch.core.dialect.vllm import (
    ALIASES,
    CONFIG_LABELS,
    FEATURES,
    LATE,
    NATIVE_SPELLINGS,
    NOT_READ,
    RELAY_SPELLINGS,
    Alias,
    Part,
    Vocabulary,
    sample_names,
)
from kvwatch.core.exposition.normalise import PageNormaliser
from kvwatch.core.model.outcome import Pace
from kvwatch.core.model.signals import BY_NAME, CORE, SIGNALS, SignalKind
from tests.support.pages import TESTS, polls, real_pages

NAMES: dict[str, dict[str, Any]] = json.loads(
    (TESTS / "data" / "vllm_names.json").read_text(encoding="utf-8")
)["names"]
OWN = {name.removeprefix("vllm:"): entry for name, entry in NAMES.items() if name.startswith("vllm:")}
ALIAS_NAMES = {alias.name for alias in ALIASES}
VOCABULARY = Vocabulary()

#: Signals that no recording holds, and why it can't.
NOT_RECORDED = {
    "requests_kv_fetch": "only with a KV connector in a consumer role, which takes two servers with GPUs",
    "prompt_tokens_recomputed_total": "only in 0.16 to 0.19, of which there is no recording",
    "kv_offload_loaded_bytes_total": "only with --kv-offloading-size, which needs a GPU",
    "kv_offload_stored_bytes_total": "only with --kv-offloading-size, which needs a GPU",
    "kv_offload_skipped_stores_total": "only with --kv-offloading-size, which needs a GPU",
    "corrupted_requests_total": "only with VLLM_COMPUTE_NANS_IN_LOGITS",
}


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_name_that_a_release_exposed_is_known(name: str) -> None:
    """Each family of each release is read or listed as not read, and never both."""
    assert (name in ALIAS_NAMES) != (name in NOT_READ)
    assert VOCABULARY.known(name)


def test_nothing_is_listed_that_no_release_exposed() -> None:
    """Names that are not read and names that tell a feature were exposed by some release."""
    assert set(OWN) >= NOT_READ
    assert set(OWN) >= set(FEATURES)


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: f"{alias.name}-{alias.releases}")
def test_every_alias_is_a_name_of_the_right_type(alias: Alias) -> None:
    """A row's name was exposed by some release, with the kind of its signal and the label it is split by."""
    signal = BY_NAME[alias.signal]
    if alias.foreign:
        assert alias.name not in OWN
        return
    assert alias.name in OWN, (
        f"{alias.name}: add it to tests/data/vllm_names.json with tests/tools/condense_names.py"
    )
    entry = OWN[alias.name]
    kind = {SignalKind.INFO: "gauge"}.get(signal.kind, str(signal.kind))
    assert entry["type"] == kind
    assert bool(alias.label) == bool(signal.dimension)
    if alias.label:
        assert alias.label in entry["labels"]
    assert alias.releases


def test_every_signal_has_an_alias_and_every_alias_a_signal() -> None:
    """No signal is without a name to read, and rows of one signal stand together, newest first."""
    assert [signal.name for signal in SIGNALS if not VOCABULARY.names_of(signal.name)] == []
    assert {alias.signal for alias in ALIASES} == set(BY_NAME)
    grouped = [signal for signal, _ in itertools.groupby(ALIASES, key=lambda alias: alias.signal)]
    assert len(grouped) == len(set(grouped))
    assert len({(alias.signal, alias.name, alias.help_has) for alias in ALIASES}) == len(ALIASES)


def test_rows_of_one_name_end_with_one_that_needs_no_help_text() -> None:
    """Where HELP tells what a name counts, there is a row for pages that lost it."""
    for name in ALIAS_NAMES:
        rows = [alias for alias in ALIASES if alias.name == name]
        assert not rows[-1].help_has
        assert all(row.help_has for row in rows[:-1])
        assert len({row.signal for row in rows}) == 1


def test_labels_of_the_configuration_exist() -> None:
    """Every label that is read of the configuration was exposed by some release."""
    assert set(CONFIG_LABELS) <= set(OWN["cache_config_info"]["labels"])


@cache
def recorded() -> frozenset[str]:
    """The signals that some recorded page holds."""
    found: set[str] = set()
    for page in real_pages():
        read = PageNormaliser(Vocabulary(), "t").read(page.body)
        for snapshot in (*read.engines.values(), read.server):
            found |= set(snapshot.values)
            if snapshot.config.known:
                found.add("cache_config")
    return frozenset(found)


def test_every_signal_is_in_a_recording_or_the_reason_is_stated() -> None:
    """A signal is seen on a real page, or it says here why it can't be; the list holds nothing else."""
    unseen = {signal.name for signal in SIGNALS} - recorded()
    assert unseen == set(NOT_RECORDED)
    assert set(CORE) <= recorded()


@pytest.mark.parametrize("folder", sorted({page.folder for page in real_pages()}))
def test_no_family_of_a_real_page_is_unknown(folder: str) -> None:
    """No page of a recorded release has a family of vLLM's that kvwatch has not heard of."""
    for page in real_pages():
        if page.folder == folder:
            assert PageNormaliser(Vocabulary(), "t").read(page.body).unknown_families == (), page.place


@pytest.mark.parametrize("spelling", [*NATIVE_SPELLINGS, *RELAY_SPELLINGS, ""])
def test_every_sample_name_is_found_in_every_spelling(spelling: str) -> None:
    """Whatever stands before a name, it means the same when that spelling is one that is read."""
    vocabulary = Vocabulary((spelling,))
    for alias in ALIASES:
        kind = BY_NAME[alias.signal].kind
        prefix = "" if alias.foreign else spelling
        if kind is SignalKind.HISTOGRAM:
            for part in (Part.BUCKET, Part.SUM, Part.COUNT):
                role = vocabulary.role(f"{prefix}{alias.name}_{part}")
                assert role is not None
                assert (role.part, role.signal.name) == (part, alias.signal)
            assert vocabulary.role(f"{prefix}{alias.name}") is None
        else:
            role = vocabulary.role(prefix + alias.name)
            assert role is not None
            assert (role.part, role.signal.name, role.exact) == (Part.VALUE, alias.signal, True)
            assert vocabulary.role(f"{prefix}{alias.name}_created") is None
            assert vocabulary.role(f"x{prefix}{alias.name}") is None
        assert vocabulary.begins((prefix + alias.name)[:-3])
    assert not vocabulary.begins(f"{spelling}hisparse")


def test_a_counter_that_lost_its_total_is_found_and_marked() -> None:
    """Without ``_total`` a counter is still that counter, less preferred; a gauge never gains one."""
    role = VOCABULARY.role("vllm:prompt_tokens")
    assert role is not None
    assert role.signal.name == "prompt_tokens_total"
    assert not role.exact
    assert VOCABULARY.role("vllm:num_requests_running_total") is None
    assert VOCABULARY.role("vllm:prompt_tokens_total_total") is None


def test_created_and_suffixed_names_are_no_news() -> None:
    """What client libraries add to a known family makes no unknown one."""
    for bare in (
        "prompt_tokens_created",
        "prompt_tokens",
        "cache_config",
        "request_prompt_tokens_bucket",
        "x_created",
    ):
        assert VOCABULARY.known(bare)
    for bare in ("kv_cache_usage", "kv_cache_usage_perc_v2", "num_requests", "prompt"):
        assert not VOCABULARY.known(bare)


def test_a_vocabulary_is_a_value() -> None:
    """Two of the same settings are equal, survive pickling, and learn nothing that shows."""
    extra = (Alias("requests_running", "busy", "by setting"),)
    one, other = Vocabulary(NATIVE_SPELLINGS, extra), Vocabulary(NATIVE_SPELLINGS, extra)
    assert one == other
    assert one.role("vllm:busy") == other.role("vllm:busy")
    copy = pickle.loads(pickle.dumps(one))  # noqa: S301  # its own
    assert copy == one
    assert copy.role("vllm:busy") is not None
    assert Vocabulary().role("vllm:busy") is None


def test_a_hostile_page_does_not_fill_the_memory_of_names() -> None:
    """However many names are asked about, few are remembered."""
    vocabulary = Vocabulary()
    for i in range(20_000):
        assert vocabulary.role(f"vllm:made_up_{i}") is None
    assert len(vocabulary._memo) <= 4096
    assert vocabulary.role("vllm:num_requests_running") is not None


@pytest.mark.parametrize("folder", sorted({page.folder for page in real_pages()}))
def test_what_a_fast_scrape_asks_for_is_what_moves(folder: str) -> None:
    """On real pages the fast names hold every core signal that is exposed, sums and counts, and no bucket."""
    page = next(page for page in reversed(real_pages()) if page.folder == folder)
    exposed = PageNormaliser(Vocabulary(), "t").read(page.body).exposed
    fast = sample_names(VOCABULARY, exposed, Pace.FAST)
    assert set(fast) - LATE < set(exposed)
    assert not [name for name in fast if name.endswith("_bucket")]
    signals = {role.signal.name for name in fast if (role := VOCABULARY.role(name)) is not None}
    assert set(CORE) <= signals


def test_recordings_hold_only_what_is_read_and_lose_nothing() -> None:
    """The time-lines for replays are cut to wanted families: every one of them gives engines."""
    for path in sorted((TESTS / "replay" / "recordings").glob("*.jsonl.gz")):
        bodies = [poll["body"].encode() for poll in polls(path) if poll["status"] == 200]
        assert PageNormaliser(Vocabulary(), "t").read(bodies[-1]).engines, path.name
