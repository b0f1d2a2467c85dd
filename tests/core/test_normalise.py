"""Samples to signals: what vLLM's many names, and what relays make of them, must come to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.core.dialect.vllm import LATE, NATIVE_SPELLINGS, RELAY_SPELLINGS, Alias, Vocabulary, sample_names
from kvwatch.core.exposition.normalise import NormalisedPage, PageNormaliser
from kvwatch.core.exposition.parser import ExpositionError
from kvwatch.core.model.outcome import Failure, Pace
from kvwatch.core.model.snapshot import CacheConfig, EngineKey, Histogram, Snapshot
from tests.support.pages import Server
from tests.support.watch import Watch

MODEL = 'model_name="m"'
V1 = 'engine="0",model_name="m"'


def interpret(
    text: str, spellings: tuple[str, ...] = NATIVE_SPELLINGS, extra: tuple[Alias, ...] = ()
) -> NormalisedPage:
    """A page, read."""
    return PageNormaliser(Vocabulary(spellings, extra), "t").read((text.strip("\n") + "\n").encode())


def engine(
    text: str, spellings: tuple[str, ...] = NATIVE_SPELLINGS, extra: tuple[Alias, ...] = ()
) -> Snapshot:
    """The one engine of a page."""
    (snapshot,) = interpret(text, spellings, extra).engines.values()
    return snapshot


def gauges(
    labels: str = V1, usage: float = 0.5, running: int = 2, waiting: int = 1, prefix: str = "vllm:"
) -> str:
    """The three gauges that everything rests on."""
    return f"""
{prefix}kv_cache_usage_perc{{{labels}}} {usage}
{prefix}num_requests_running{{{labels}}} {running}.0
{prefix}num_requests_waiting{{{labels}}} {waiting}.0
"""


# -- renamed, doubled, changed in meaning -----------------------------------------------------------------------


def test_old_and_new_name_together_are_one_signal() -> None:
    """While a name is deprecated both are there with the same value; they are never added up."""
    page = engine(f"""
vllm:gpu_cache_usage_perc{{{V1}}} 0.25
vllm:kv_cache_usage_perc{{{V1}}} 0.25
# HELP vllm:gpu_prefix_cache_queries_total Number of queried tokens.
vllm:gpu_prefix_cache_queries_total{{{V1}}} 320.0
vllm:prefix_cache_queries_total{{{V1}}} 320.0
vllm:gpu_prefix_cache_queries_created{{{V1}}} 1.75e9
vllm:time_per_output_token_seconds_count{{{V1}}} 7.0
vllm:time_per_output_token_seconds_sum{{{V1}}} 0.7
vllm:inter_token_latency_seconds_count{{{V1}}} 7.0
vllm:inter_token_latency_seconds_sum{{{V1}}} 0.7
""")
    assert page.number("kv_cache_usage_ratio") == 0.25
    assert page.number("prefix_cache_queried_tokens_total") == 320
    assert page.histogram("inter_token_latency_seconds") == Histogram(0.7, 7.0)


OLD_AND_NEW = ("gpu_cache_usage_perc", "kv_cache_usage_perc")


@pytest.mark.parametrize("names", [OLD_AND_NEW, OLD_AND_NEW[::-1]])
def test_the_newer_name_wins_wherever_it_stands(names: tuple[str, str]) -> None:
    """Where old and new name disagree the newer one is read, whichever comes first on the page."""
    values = {"gpu_cache_usage_perc": 0.1, "kv_cache_usage_perc": 0.9}
    text = "\n".join(f"vllm:{name}{{{V1}}} {values[name]}" for name in names)
    assert engine(text).number("kv_cache_usage_ratio") == 0.9


def test_only_the_old_name() -> None:
    """A page of before 0.9.2 has the usage under its old name."""
    assert engine(f"vllm:gpu_cache_usage_perc{{{V1}}} 0.1").number("kv_cache_usage_ratio") == 0.1


BLOCKS = f"""
# HELP vllm:gpu_prefix_cache_queries GPU prefix cache queries, in terms of number of queried blocks.
# TYPE vllm:gpu_prefix_cache_queries counter
vllm:gpu_prefix_cache_queries_total{{{V1}}} 10.0
# HELP vllm:gpu_prefix_cache_hits GPU prefix cache hits, in terms of number of cached blocks.
# TYPE vllm:gpu_prefix_cache_hits counter
vllm:gpu_prefix_cache_hits_total{{{V1}}} 4.0
"""
CONFIG_32 = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="None",enable_prefix_caching="True"} 1.0'


def test_counters_in_blocks_become_tokens() -> None:
    """Up to 0.8.5 look-ups were counted in blocks, as their HELP says: times the block size, with a caveat."""
    page = engine(BLOCKS + CONFIG_32)
    assert page.number("prefix_cache_queried_tokens_total") == 320
    assert page.number("prefix_cache_hit_tokens_total") == 128
    assert "whole blocks" in page.caveats["prefix_cache_hit_tokens_total"]
    text = BLOCKS.replace("queries GPU", "queries_total GPU").replace("hits GPU", "hits_total GPU")
    assert engine(text + CONFIG_32).number("prefix_cache_hit_tokens_total") == 128


def test_counters_in_tokens_under_the_same_name_stay() -> None:
    """From 0.9.0 the same name counts tokens, and its HELP says so."""
    page = engine(BLOCKS.replace("blocks", "tokens") + CONFIG_32)
    assert page.number("prefix_cache_queried_tokens_total") == 10
    assert page.number("prefix_cache_hit_tokens_total") == 4
    assert not page.caveats


def test_a_help_text_that_kept_its_colon_still_tells() -> None:
    """Where samples lost their colon on the way and HELP lines did not, the unit is told all the same."""
    lost = BLOCKS.replace("\nvllm:", "\nvllm_")
    page = engine(lost + CONFIG_32)
    assert page.number("prefix_cache_queried_tokens_total") == 320
    assert page.number("prefix_cache_hit_tokens_total") == 128


def test_blocks_without_a_block_size_are_missing() -> None:
    """Where the block size is not exposed, a count of blocks is no count of tokens."""
    page = engine(BLOCKS)
    assert page.number("prefix_cache_queried_tokens_total") is None
    assert "block size" in page.missing["prefix_cache_queried_tokens_total"]


def test_without_its_help_text_the_unit_is_unknown() -> None:
    """A relay that strips HELP takes away what the number counts: missing with the reason, never guessed."""
    bare = "\n".join(line for line in BLOCKS.splitlines() if not line.startswith("#"))
    page = engine(bare + "\n" + CONFIG_32)
    assert page.number("prefix_cache_queried_tokens_total") is None
    assert "HELP" in page.missing["prefix_cache_queried_tokens_total"]


def test_a_fast_scrape_asks_for_the_block_size_where_counters_are_in_blocks() -> None:
    """The narrow page of an 0.8.5 gives the same tokens as the whole one."""
    vocabulary = Vocabulary()
    exposed = interpret(BLOCKS + CONFIG_32 + gauges()).exposed
    assert "vllm:cache_config_info" in sample_names(vocabulary, exposed, Pace.FAST)
    modern = interpret(Server().page).exposed
    assert "vllm:cache_config_info" not in sample_names(vocabulary, modern, Pace.FAST)
    assert not [name for name in sample_names(vocabulary, modern, Pace.FAST) if name.endswith("_bucket")]
    assert set(sample_names(vocabulary, modern, Pace.FULL)) == set(modern) | LATE


def test_a_hit_rate_of_minus_one_is_none() -> None:
    """v0 says -1 where prefix caching is off: that is missing with the reason, and no ratio."""
    page = engine(f"vllm:gpu_prefix_cache_hit_rate{{{MODEL}}} -1.0\nvllm:num_requests_running{{{MODEL}}} 0.0")
    assert page.number("prefix_cache_lifetime_hit_ratio") is None
    assert "prefix caching is off" in page.missing["prefix_cache_lifetime_hit_ratio"]
    good = engine(f"vllm:gpu_prefix_cache_hit_rate{{{MODEL}}} 0.75")
    assert good.number("prefix_cache_lifetime_hit_ratio") == 0.75


def test_the_parts_of_waiting_are_not_added_to_it() -> None:
    """The total is the total; its parts stand beside it, whatever they add up to."""
    page = engine(
        gauges(waiting=5)
        + f"""
vllm:num_requests_waiting_by_reason{{{V1},reason="capacity"}} 4.0
vllm:num_requests_waiting_by_reason{{{V1},reason="deferred"}} 1.0
"""
    )
    assert page.number("requests_waiting") == 5
    assert page.part("requests_waiting_by_reason", "deferred") == 1


def test_names_that_contain_others() -> None:
    """Names are matched whole: a share pinned by transfers is not the KV usage."""
    page = interpret(f"""
vllm:kv_offload_cpu_cache_usage_perc{{{V1}}} 0.9
vllm:hisparse_host_cache_usage_perc{{{V1}}} 0.8
vllm:kv_offload_tiering_primary_read_usage_perc{{{V1}}} 0.7
vllm:num_requests_running{{{V1}}} 1.0
vllm:request_success_total{{{V1},finished_reason="stop"}} 3.0
""")
    (found,) = page.engines.values()
    assert found.number("kv_cache_usage_ratio") is None
    assert page.unknown_families == ()


def test_a_histogram_called_total_is_a_histogram() -> None:
    """`iteration_tokens_total` is a histogram despite its name."""
    page = engine(f"""
vllm:iteration_tokens_total_bucket{{{V1},le="8.0"}} 3.0
vllm:iteration_tokens_total_bucket{{{V1},le="+Inf"}} 5.0
vllm:iteration_tokens_total_sum{{{V1}}} 99.0
vllm:iteration_tokens_total_count{{{V1}}} 5.0
""")
    assert page.histogram("iteration_tokens") == Histogram(99.0, 5.0, (8.0,), (3.0,))


# -- the cache configuration ------------------------------------------------------------------------------------


def config_line(**labels: str) -> str:
    return "vllm:cache_config_info{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} 1.0"


@pytest.mark.parametrize("labelled", [True, False], ids=["with engine", "without engine"])
def test_the_configuration_joins_without_a_model(labelled: bool) -> None:
    """The configuration has no model_name, and before 0.9 no engine: it is the engine's all the same."""
    which = {"engine": "0"} if labelled else {}
    page = engine(
        gauges()
        + config_line(
            **which,
            block_size="16",
            num_gpu_blocks="7281",
            enable_prefix_caching="False",
            cache_dtype="fp8",
            gpu_memory_utilization="0.85",
        )
    )
    assert page.config.known
    assert page.config.block_size == 16
    assert page.config.num_gpu_blocks == 7281
    assert page.config.enable_prefix_caching is False
    assert page.config.cache_dtype == "fp8"
    assert page.config.gpu_memory_utilization == 0.85


def test_none_in_a_label_is_unknown() -> None:
    """vLLM's own ``None`` is "it does not say", and no zero."""
    page = engine(
        gauges()
        + config_line(
            block_size="16", num_gpu_blocks="None", enable_prefix_caching="None", cache_dtype="None"
        )
    )
    assert page.config.known
    assert page.config.num_gpu_blocks is None
    assert page.config.enable_prefix_caching is None
    assert page.config.cache_dtype is None
    assert "cache_config" not in page.missing


@pytest.mark.parametrize("nonsense", ["-1", "nan", "inf", "many", "", "1_0,"])
def test_a_label_that_is_no_count_is_unknown(nonsense: str) -> None:
    """What can't be a number of blocks is none."""
    assert engine(gauges() + config_line(num_gpu_blocks=nonsense)).config.num_gpu_blocks is None


def test_a_pool_repeated_on_every_rank_is_divided() -> None:
    """Under internal data parallelism every rank's configuration shows the sum over ranks."""
    ranks = [f'engine="{i}",model_name="m"' for i in range(4)]
    configs = [config_line(engine=str(i), num_gpu_blocks="4000", block_size="16") for i in range(4)]
    page = interpret("\n".join([*map(gauges, ranks), *configs]))
    assert {key.engine for key in page.engines} == {"0", "1", "2", "3"}
    assert {found.config.num_gpu_blocks for found in page.engines.values()} == {1000.0}


def test_one_rank_behind_an_external_balancer_keeps_its_blocks() -> None:
    """A server that shows one rank, whatever its number, shows its own blocks."""
    page = engine(
        gauges('engine="3",model_name="m"') + config_line(engine="3", num_gpu_blocks="4000", block_size="16")
    )
    assert page.key == EngineKey("t", "m", "3")
    assert page.config.num_gpu_blocks == 4000


def test_capacity_labels_are_read_as_they_are() -> None:
    """What vLLM says of its capacity is kept apart from blocks x block size, which differs with sharded contexts."""
    page = engine(
        gauges()
        + config_line(
            engine="0",
            block_size="64",
            num_gpu_blocks="100",
            kv_cache_size_tokens="25600",
            kv_cache_max_concurrency="4.5",
        )
    )
    assert page.config.kv_cache_size_tokens == 25600
    assert page.config.kv_cache_max_concurrency == 4.5


def test_a_hybrid_model_is_told_by_its_mamba_labels() -> None:
    """Where a state of constant size is in the pool, blocks x block size is no capacity."""
    assert engine(gauges() + config_line(mamba_page_size_padded="8192")).config.hybrid
    assert not engine(gauges() + config_line(mamba_page_size_padded="None")).config.hybrid


def test_configurations_that_contradict_say_what_they_agree_on() -> None:
    """A former run's series beside today's: what both say holds, the rest is unknown."""
    page = engine(
        gauges()
        + config_line(engine="0", block_size="16", num_gpu_blocks="100", cache_dtype="None")
        + "\n"
        + config_line(engine="0", block_size="16", num_gpu_blocks="200", cache_dtype="fp8")
    )
    assert page.config.block_size == 16
    assert page.config.num_gpu_blocks is None
    assert page.config.cache_dtype == "fp8"


def test_without_a_configuration_that_is_said() -> None:
    """No configuration on the page is a missing signal with its reason."""
    page = engine(gauges())
    assert not page.config.known
    assert "vllm:cache_config_info" in page.missing["cache_config"]


def test_a_huge_label_of_a_family_not_read_is_no_trouble() -> None:
    """A configuration of half a megabyte in a label is stepped over, again and again, and not kept."""
    interpreter = PageNormaliser(Vocabulary(), "t")
    for i in range(60):
        text = gauges() + f'vllm:vllm_config_info{{text="{i}{"x" * 500_000}"}} 1.0\n'
        (found,) = interpreter.read(text.encode()).engines.values()
        assert found.number("requests_running") == 2
    assert sum(map(len, interpreter._reader._memo)) < 20_000_000


# -- several processes, relays, routers -----------------------------------------------------------------------


def test_processes_that_agree_are_one_engine() -> None:
    """Series that differ by pid alone are the engine's if they say the same."""
    page = engine(f"""
vllm:kv_cache_usage_perc{{{V1},pid="11"}} 0.5
vllm:kv_cache_usage_perc{{{V1},pid="12"}} 0.5
""")
    assert page.number("kv_cache_usage_ratio") == 0.5


def test_processes_that_disagree_tell_nothing() -> None:
    """Where two processes say different things nobody knows which lives: missing, never the sum or the last."""
    page = engine(f"""
vllm:num_requests_running{{{V1},pid="11"}} 0.0
vllm:num_requests_running{{{V1},pid="12"}} 7.0
""")
    assert page.number("requests_running") is None
    assert "processes" in page.missing["requests_running"]


def test_the_older_name_without_pid_steps_in() -> None:
    """0.9.2 to 0.11.0 label the new usage by process, the old one not: the old one is read."""
    page = engine(f"""
vllm:gpu_cache_usage_perc{{{V1}}} 0.4
vllm:kv_cache_usage_perc{{{V1},pid="11"}} 0.1
vllm:kv_cache_usage_perc{{{V1},pid="12"}} 0.4
""")
    assert page.number("kv_cache_usage_ratio") == 0.4


def test_a_routers_copies_are_refused() -> None:
    """A router's own gauges of its servers carry `server` and no model: they are no engine of this target."""
    page = interpret("""
vllm:num_requests_running{server="http://a:8000"} 3.0
vllm:num_requests_running{server="http://b:8000"} 4.0
vllm:gpu_prefix_cache_hit_rate{server="http://a:8000"} 0.5
""")
    assert not page.engines


RAY = V1 + ',ReplicaId="r1",WorkerId="w1",NodeAddress="10.0.0.1"'


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_a_relays_spelling_is_read_when_named(prefix: str) -> None:
    """Other spellings count when the settings name them, and the page is not vLLM's when they do not."""
    text = gauges(prefix=prefix)
    assert engine(text, (*NATIVE_SPELLINGS, prefix)).number("requests_running") == 2
    with pytest.raises(ExpositionError, match="spelling") as caught:
        interpret(text)
    assert caught.value.kind is Failure.NOT_VLLM


def test_a_counter_with_and_without_total_is_one() -> None:
    """Ray exports a counter twice, as counter and as gauge: one of the two is taken."""
    for lines in (["_total", ""], ["", "_total"], ["_total"], [""]):
        text = gauges(RAY, prefix="ray_vllm_") + "\n".join(
            f"ray_vllm_prompt_tokens{suffix}{{{RAY}}} 1234.0" for suffix in lines
        )
        assert engine(text, RELAY_SPELLINGS).number("prompt_tokens_total") == 1234


def test_the_exact_name_is_preferred_to_the_one_without_total() -> None:
    """Where the two forms disagree the counter's own name wins."""
    text = f"ray_vllm_prompt_tokens{{{RAY}}} 1.0\nray_vllm_prompt_tokens_total{{{RAY}}} 2.0\n"
    assert engine(text, RELAY_SPELLINGS).number("prompt_tokens_total") == 2


def test_a_name_that_a_relay_doubles_is_read_once() -> None:
    """Own and relayed spelling together: the first named wins, nothing is added."""
    text = gauges(running=2) + gauges(running=2, prefix="kserve_vllm:")
    assert engine(text, (*NATIVE_SPELLINGS, *RELAY_SPELLINGS)).number("requests_running") == 2
    text = gauges(running=2) + gauges(running=9, prefix="kserve_vllm:")
    assert engine(text, (*NATIVE_SPELLINGS, *RELAY_SPELLINGS)).number("requests_running") == 2


def test_replicas_on_one_page_are_engines_of_their_own() -> None:
    """Two replicas that a relay puts on one page keep their numbers and their configurations apart."""
    labels = [f'{V1},ReplicaId="{r}"' for r in ("a", "b")]
    configs = [
        f'ray_vllm_cache_config_info{{engine="0",ReplicaId="{r}",num_gpu_blocks="{n}",block_size="16"}} 1.0'
        for r, n in (("a", 100), ("b", 300))
    ]
    page = interpret(
        "\n".join(
            [
                gauges(labels[0], running=1, prefix="ray_vllm_"),
                gauges(labels[1], running=2, prefix="ray_vllm_"),
            ]
        )
        + "\n".join(configs),
        RELAY_SPELLINGS,
    )
    found = {
        key.engine: (s.number("requests_running"), s.config.num_gpu_blocks) for key, s in page.engines.items()
    }
    assert found == {"0/a": (1.0, 100.0), "0/b": (2.0, 300.0)}


def test_replicas_of_equal_configuration_do_not_share_their_blocks() -> None:
    """Two servers with as many blocks each have as many each: only ranks of one server repeat a sum."""
    text = ""
    for replica in ("a", "b"):
        text += gauges(f'{V1},ReplicaId="{replica}"', prefix="ray_vllm_")
        text += f'ray_vllm_cache_config_info{{engine="0",ReplicaId="{replica}",num_gpu_blocks="100"}} 1.0\n'
    page = interpret(text, RELAY_SPELLINGS)
    assert [found.config.num_gpu_blocks for found in page.engines.values()] == [100.0, 100.0]


def test_colons_lost_on_the_way() -> None:
    """Some client libraries answer OpenMetrics with samples whose colon became an underscore."""
    text = f"""
# HELP vllm:prompt_tokens Text.
# TYPE vllm:prompt_tokens counter
vllm_prompt_tokens_total{{{V1}}} 12.0
vllm_prompt_tokens_created{{{V1}}} 1.75e9
# HELP vllm:kv_cache_usage_perc Text.
# TYPE vllm:kv_cache_usage_perc gauge
vllm_kv_cache_usage_perc{{{V1}}} 0.5
# EOF
"""
    page = interpret(text)
    (found,) = page.engines.values()
    assert found.number("prompt_tokens_total") == 12
    assert found.number("kv_cache_usage_ratio") == 0.5
    assert page.unknown_families == ()


def test_names_without_any_prefix_by_setting() -> None:
    """Some packagings drop the prefix: the empty spelling reads them, and nobody else's are called unknown."""
    page = interpret(gauges(prefix="") + "go_goroutines 9\n", ("",))
    (found,) = page.engines.values()
    assert found.number("requests_waiting") == 1
    assert page.unknown_families == ()


def test_an_alias_by_setting_comes_first() -> None:
    """A name that yesterday's release brought is read when the settings name it, before the known ones."""
    extra = (Alias("kv_cache_usage_ratio", "cache_fill_fraction", "by setting"),)
    text = gauges(usage=0.1) + f"vllm:cache_fill_fraction{{{V1}}} 0.6\n"
    assert engine(text, extra=extra).number("kv_cache_usage_ratio") == 0.6
    assert engine(text).number("kv_cache_usage_ratio") == 0.1
    assert interpret(text).unknown_families == ("vllm:cache_fill_fraction",)
    assert interpret(text, extra=extra).unknown_families == ()
    assert (
        "vllm:cache_fill_fraction"
        in engine(f"vllm:num_requests_running{{{V1}}} 1\n", extra=extra).missing["kv_cache_usage_ratio"]
    )


# -- whose numbers ---------------------------------------------------------------------------------------------


def test_two_models_on_one_page_are_two_engines() -> None:
    """Each model has its own numbers; nothing is mixed."""
    page = interpret(
        gauges('engine="0",model_name="a"', usage=0.1) + gauges('engine="0",model_name="b"', usage=0.2)
    )
    assert {key.model_name: s.number("kv_cache_usage_ratio") for key, s in page.engines.items()} == {
        "a": 0.1,
        "b": 0.2,
    }


def test_data_parallel_ranks_are_engines() -> None:
    """Usage of two ranks is two numbers: neither their sum nor the last one."""
    page = interpret(
        gauges('engine="0",model_name="m"', usage=0.4) + gauges('engine="1",model_name="m"', usage=0.4)
    )
    assert [s.number("kv_cache_usage_ratio") for s in page.engines.values()] == [0.4, 0.4]


def test_v0_has_no_engine_label() -> None:
    """Without the label it is engine 0, of the old generation."""
    page = engine(f"""
vllm:gpu_cache_usage_perc{{{MODEL}}} 0.3
vllm:num_requests_running{{{MODEL}}} 1.0
vllm:num_requests_waiting{{{MODEL}}} 2.0
vllm:num_requests_swapped{{{MODEL}}} 3.0
""")
    assert page.key == EngineKey("t", "m", "0")
    assert page.generation == "v0"
    assert page.number("requests_swapped") == 3
    assert "v0" in page.features


def test_the_first_releases_of_v1_have_no_engine_label_either() -> None:
    """Up to 0.8.2 the new engine is told by its prefix-cache counters."""
    assert engine(f"vllm:gpu_prefix_cache_queries_total{{{MODEL}}} 1.0").generation == "v1"


def test_what_concerns_the_server_is_not_an_engines() -> None:
    """Refusals at the front have no engine; the start time of the process is the server's."""
    page = interpret(
        gauges()
        + """
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 5.0
process_start_time_seconds 1.7e9
"""
    )
    assert list(page.engines) == [EngineKey("t", "m", "0")]
    assert page.server.part("admission_rejections_total", "max_num_queued_reqs") == 5
    assert page.server.number("engine_start_time_seconds") == 1.7e9


# -- values that can't be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [("NaN", "nan"), ("+Inf", "inf"), ("-0.5", "below"), ("1.7", "processes that died"), ("55.0", "above 1")],
)
def test_a_usage_that_cannot_be_is_missing(value: str, reason: str) -> None:
    """A value outside what the signal can be is missing, with the value as the reason."""
    page = engine(gauges().replace("} 0.5", f"}} {value}"))
    assert page.number("kv_cache_usage_ratio") is None
    assert reason in page.missing["kv_cache_usage_ratio"]
    assert page.number("requests_running") == 2


def test_a_hair_above_one_is_one() -> None:
    """Rounding in the client library is no dead process."""
    assert engine(gauges().replace("} 0.5", "} 1.00000000002")).number("kv_cache_usage_ratio") == 1.0


def test_a_series_with_two_values_is_missing() -> None:
    """The same series twice with different values: nobody can say which, on the first page as on the tenth."""
    good, bad = gauges(), gauges() + f"vllm:num_requests_running{{{V1}}} 3.0\n"
    interpreter = PageNormaliser(Vocabulary(), "t")
    for text, expected in ((good, 2), (bad, None), (good, 2), (bad, None)):
        (found,) = interpreter.read(text.encode()).engines.values()
        assert found.number("requests_running") == expected
        assert found.number("requests_waiting") == 1


def test_a_sleep_state_without_its_label_is_missing() -> None:
    """Without the label nobody can say which state the 1 means."""
    page = engine(gauges() + f"vllm:engine_sleep_state{{{V1}}} 1.0\n")
    assert page.part("engine_sleep_state", "awake") is None
    assert "sleep_state" in page.missing["engine_sleep_state"]


@pytest.mark.parametrize(
    "broken",
    [
        'bucket{V,le="1.0"} 5.0\nbucket{V,le="2.0"} 4.0\nbucket{V,le="+Inf"} 6.0\nsum{V} 1\ncount{V} 6',
        'bucket{V,le="1.0"} 9.0\nbucket{V,le="+Inf"} 6.0\nsum{V} 1\ncount{V} 6',
        'bucket{V,le="1.0"} 5.0\nbucket{V,le="+Inf"} 6.0\ncount{V} 6',
        'bucket{V,le="1.0"} 5.0\nbucket{V,le="+Inf"} 6.0\nsum{V} 1',
        'bucket{V,le="1.0"} NaN\nbucket{V,le="+Inf"} 6.0\nsum{V} 1\ncount{V} 6',
        'bucket{V,le="1.0"} 5.0\nbucket{V,le="+Inf"} 6.0\nsum{V} NaN\ncount{V} 6',
        'bucket{V,pid="1",le="1.0"} 5\nbucket{V,pid="2",le="1.0"} 4\nbucket{V,le="+Inf"} 6\nsum{V} 1\ncount{V} 6',
    ],
)
def test_a_broken_histogram_is_missing(broken: str) -> None:
    """Buckets that do not rise, or lack a part, give no histogram."""
    lines = [
        f"vllm:time_to_first_token_seconds_{line}".replace("{V", f"{{{V1}") for line in broken.splitlines()
    ]
    page = engine(gauges() + "\n".join(lines))
    assert page.histogram("time_to_first_token_seconds") is None
    assert page.missing["time_to_first_token_seconds"]


# -- what is not there ---------------------------------------------------------------------------------------------


def test_before_the_first_request_gauges_are_not_yet() -> None:
    """Several API servers, and v0, expose an engine's gauges with its first request: that is said, not alarmed."""
    fresh = engine(f"vllm:prompt_tokens_total{{{V1}}} 0.0\n")
    assert fresh.missing["requests_running"].startswith("not yet")
    assert not fresh.served
    lost = engine(f"vllm:prompt_tokens_total{{{V1}}} 9.0\n")
    assert lost.missing["requests_running"].startswith("not exposed")
    assert lost.served
    paste = engine(f"vllm:prefix_cache_queries_total{{{V1}}} 32.0\n")
    assert paste.missing["requests_running"].startswith("not exposed")


def test_an_idle_v0_shows_its_configuration_only() -> None:
    """The page of a v0 that was never asked has no engine yet, and is vLLM's all the same."""
    page = interpret(config_line(block_size="16", num_gpu_blocks="100"))
    assert not page.engines
    assert page.configured


def test_statistics_switched_off_is_not_idle() -> None:
    """Without statistics only the server's own families are there: no engine, no configuration."""
    text = """
# HELP vllm:websocket_connections_active Text.
vllm:websocket_connections_active 0.0
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12.0
process_start_time_seconds 1.7e9
"""
    page = interpret(text)
    assert not page.engines
    assert not page.configured


def test_what_is_missing_names_what_was_looked_for() -> None:
    """A reason shows the names looked for, newest first, and the option that exposes them."""
    page = engine(f"vllm:num_requests_running{{{V1}}} 1.0\nvllm:prompt_tokens_total{{{V1}}} 1.0\n")
    usage = page.missing["kv_cache_usage_ratio"]
    assert usage.index("vllm:kv_cache_usage_perc") < usage.index("vllm:gpu_cache_usage_perc")
    assert "--speculative-config" in page.missing["spec_decode_draft_tokens_total"]


def test_unknown_families_are_listed_and_foreign_ones_are_not() -> None:
    """Tomorrow's rename is listed on every reading; what others expose is nobody's business."""
    text = (
        gauges()
        + f"""
# HELP vllm:kv_cache_fill Text.
# TYPE vllm:kv_cache_fill gauge
vllm:kv_cache_fill{{{V1}}} 0.5
vllm:without_help_total{{{V1}}} 1.0
python_gc_objects_collected_total 4.0
"""
    )
    interpreter = PageNormaliser(Vocabulary(), "t")
    for _ in range(3):
        page = interpreter.read(text.encode())
        assert page.unknown_families == ("vllm:kv_cache_fill", "vllm:without_help")


def test_every_signal_is_a_value_or_missing_with_a_reason() -> None:
    """No signal of an engine is neither, and none is both."""
    for text in (gauges(), Server().page, BLOCKS):
        found = engine(text)
        assert not set(found.values) & set(found.missing)
        assert all(found.missing.values())


# -- order and memory ---------------------------------------------------------------------------------------------

PAGE = (
    gauges()
    + BLOCKS
    + f"""
vllm:gpu_cache_usage_perc{{{V1}}} 0.25
vllm:num_requests_running{{{V1},pid="2"}} 2.0
vllm:time_to_first_token_seconds_bucket{{{V1},le="1.0"}} 5.0
vllm:time_to_first_token_seconds_bucket{{{V1},le="2.5"}} 6.0
vllm:time_to_first_token_seconds_bucket{{{V1},le="+Inf"}} 9.0
vllm:time_to_first_token_seconds_sum{{{V1}}} 12.0
vllm:time_to_first_token_seconds_count{{{V1}}} 9.0
vllm:request_success_total{{{V1},finished_reason="stop"}} 5.0
vllm:request_success_total{{{V1},finished_reason="length"}} 4.0
vllm:brand_new{{{V1}}} 4.0
"""
    + CONFIG_32
)
LINES = [line for line in PAGE.splitlines() if line]


@given(st.permutations(LINES))
@settings(max_examples=200)
def test_the_order_of_lines_does_not_matter(lines: list[str]) -> None:
    """However the lines are shuffled, the signals are the same."""
    assert interpret("\n".join(lines)) == interpret(PAGE)


@given(
    st.lists(st.lists(st.sampled_from(LINES), min_size=1, max_size=12, unique=True), min_size=1, max_size=8)
)
@settings(max_examples=200)
def test_pages_read_before_do_not_matter(pages: list[list[str]]) -> None:
    """An interpreter that read other pages of the same server says what a fresh one says."""
    used = PageNormaliser(Vocabulary(), "t")
    for lines in pages:
        body = ("\n".join(lines) + "\n").encode()
        assert read(used, body) == read(PageNormaliser(Vocabulary(), "t"), body)


def read(interpreter: PageNormaliser, body: bytes) -> NormalisedPage | Failure:
    try:
        return interpreter.read(body)
    except ExpositionError as bad:
        return bad.kind


def test_a_longest_request_beyond_all_numbers_is_none() -> None:
    """A page can say a capacity and a concurrency of which the quotient is no finite number: then it says nothing."""
    config = CacheConfig(kv_cache_size_tokens=1e308, kv_cache_max_concurrency=1e-308, known=True)
    assert config.max_model_len is None
    said = {"kv_cache_size_tokens": "1e308", "kv_cache_max_concurrency": "1e-308"}
    server = Server(usage=0.4, running=1)
    server.config |= said
    watch = Watch()
    watch.see(server)
    assert watch.state.up
