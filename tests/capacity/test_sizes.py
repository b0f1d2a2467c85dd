"""Sizes that are known from elsewhere: worked by hand, or reported by servers in the field."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kvwatch.capacity.errors import PlanError, RefusedError
from kvwatch.capacity.kv_model import from_config, from_numbers
from kvwatch.capacity.sizing import Flags, Layout, layout_of, sizing_of
from kvwatch.capacity.units import GIB
from tests.capacity.families import QUESTIONS, config

LLAMA = config("llama-3.1-8b")
GEMMA = config("gemma-4-26b-a4b")
ODD: tuple[Any, ...] = (None, 0, 10**15, "x", [[]], {})


def layout(data: dict[str, Any], **flags: Any) -> Layout:
    return layout_of(from_config(data), Flags(**flags))


def test_the_worked_example() -> None:
    """32 layers, 8 KV heads of 128 in BF16: 128 KiB a token, 1 GiB for 8,192 of them, 8 GiB for eight requests."""
    for model in (from_numbers(32, 8, 128), from_config(LLAMA)):
        found = layout_of(model, Flags(max_model_len=8192))
        assert found.bytes_per_token_per_gpu == 131_072
        assert found.needed_bytes(8192) == GIB
        assert sizing_of(found, 8 * GIB).concurrency(8192) == 8


def test_heads_are_the_key_value_heads_and_of_their_own_size() -> None:
    """Query heads do not count, nor does hidden size / heads where the head has a size of its own."""
    own = LLAMA | {"num_attention_heads": 64, "head_dim": 64}
    assert layout(own).bytes_per_token_per_gpu == 2 * 32 * 8 * 64 * 2
    mha = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert layout(mha).bytes_per_token_per_gpu == 4 * layout(LLAMA).bytes_per_token_per_gpu


def test_weights_of_four_bits_do_not_make_a_cache_of_four_bits() -> None:
    quantized = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert layout(quantized).bytes_per_token_per_gpu == 131_072


def test_a_checkpoint_may_ask_for_an_fp8_cache() -> None:
    """ModelOpt checkpoints do, unless a flag says otherwise."""
    own = LLAMA | {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    assert layout(own).bytes_per_token_per_gpu == 65_536
    assert layout(own, kv_cache_dtype="bfloat16").bytes_per_token_per_gpu == 131_072


def test_ranks_beyond_the_heads_repeat_them_and_a_latent_vector_is_whole_on_all() -> None:
    assert layout(LLAMA, tensor=8).bytes_per_token_per_gpu == 16_384
    assert layout(LLAMA, tensor=32).bytes_per_token_per_gpu == 16_384
    latent = config("deepseek-v3")
    assert layout(latent, tensor=8).bytes_per_token_per_gpu == 61 * (512 + 64) * 2
    assert layout(latent, tensor=8).bytes_per_token_total == 8 * 61 * 576 * 2


def test_a_latent_vector_with_scales_and_indexers_on_some_layers() -> None:
    """656 bytes on each layer, 132 on those with an indexer: 21 of 78 as a server reported it with 28.85 GiB."""
    found = layout(config("glm-dsa"), tensor=4, kv_cache_dtype="fp8", max_model_len=400_000)
    assert found.bytes_per_token_per_gpu == 78 * 656 + 21 * 132
    assert sizing_of(found, int(28.85 * GIB)).kv_cache_tokens == pytest.approx(574_336, rel=0.001)


def test_windows_cost_once_what_is_in_flight() -> None:
    """A growing part and a part once per request, with a batch of 2,048 in two steps: 5.98 GiB at 262,144 tokens, and
    with 1.82 GiB some 44,224 tokens at most (a server's own words, two releases of the cache apart)."""
    found = layout(GEMMA, batched=2048, max_model_len=262_144)
    assert found.bytes_per_token_per_gpu == 5 * 2 * 512 * 2 * 2
    assert found.needed_bytes(262_144) / GIB == pytest.approx(5.98, abs=0.005)
    sizing = sizing_of(found, int(1.82 * GIB))
    assert not sizing.fits
    assert sizing.longest(262_144) == pytest.approx(44_224, rel=0.01)


def test_states_make_tokens_depend_on_the_length() -> None:
    """One pool, and the longer the requests the more tokens it is said to hold; FP8 does not double it."""
    model = config("qwen3.5-27b")
    tokens = [
        sizing_of(layout(model, tensor=2, max_model_len=length), 20 * GIB).kv_cache_tokens
        for length in (8_192, 262_144)
    ]
    assert tokens[0] < tokens[1] / 1.5
    half = sizing_of(layout(model, tensor=2, kv_cache_dtype="fp8", max_model_len=262_144), 20 * GIB)
    assert 1.8 < half.kv_cache_tokens / tokens[1] < 2


def test_one_block_is_never_given_out() -> None:
    """Memory for one request to the byte is not enough: vLLM sets the null block aside."""
    found = layout(LLAMA, max_model_len=8192)
    assert not sizing_of(found, GIB).fits
    assert sizing_of(found, GIB).longest(8192) == 8192 - 16
    assert sizing_of(found, GIB + found.bytes_per_block).fits


def test_text_within_a_model_that_sees() -> None:
    """The text part counts, wherever it stands and whether or not it names its class."""
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    for outer in ("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"):
        nested = {"architectures": [outer], "model_type": "llava", "text_config": text}
        assert layout(nested).bytes_per_token_per_gpu == 131_072
    deep = {"architectures": ["KimiVLForConditionalGeneration"], "text_config": config("deepseek-v3")}
    assert layout(deep).bytes_per_token_per_gpu == 70_272


def nested(outer: str, **text: Any) -> dict[str, Any]:
    return {"architectures": [outer], "torch_dtype": "bfloat16", "text_config": text}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # Gemma's heads are of 256 whatever the hidden size: 3840 / 16 would be 240
        (
            nested(
                "Gemma3ForConditionalGeneration", model_type="gemma3_text", hidden_size=3840, num_hidden_layers=48,
                num_attention_heads=16, num_key_value_heads=8, sliding_window=1024
            ),
            8 * 2 * 8 * 256 * 2,
        ),
        # and the smallest names neither heads nor their size
        (
            nested(
                "Gemma3ForConditionalGeneration", model_type="gemma3_text", hidden_size=2560, num_hidden_layers=34,
                sliding_window=1024
            ),
            5 * 2 * 4 * 256 * 2,
        ),
        # nothing but its type: all of it is the class's
        (nested("LlavaForConditionalGeneration", model_type="llama"), 524_288),
        (nested("LlavaNextForConditionalGeneration", model_type="mistral", sliding_window=None), 131_072),
    ],
)  # fmt: skip
def test_what_a_text_part_leaves_out_is_its_classs_default(data: dict[str, Any], expected: int) -> None:
    """As published files do, and each such number is said to be assumed."""
    assert layout(data).bytes_per_token_per_gpu == expected
    assert any(
        f"the default of {data['text_config']['model_type']}" in note for note in from_config(data).notes
    )


def test_a_whole_configuration_has_the_size_of_its_heads_from_its_class_too_and_no_more() -> None:
    whole = config("gemma-2-9b")
    del whole["head_dim"]
    assert layout(whole).bytes_per_token_per_gpu == layout(config("gemma-2-9b")).bytes_per_token_per_gpu
    del whole["num_hidden_layers"]
    with pytest.raises(PlanError, match="num_hidden_layers"):
        from_config(whole)


def test_an_authors_null_is_no_default() -> None:
    """Of a size of heads: hidden size / heads, as vLLM takes it."""
    data = config("qwen3-30b-a3b") | {"model_type": "qwen3", "head_dim": None}
    assert layout(data).bytes_per_token_per_gpu == 48 * 2 * 4 * (2048 // 32) * 2


def test_a_window_that_no_request_leaves_keeps_every_token() -> None:
    """Phi-4-mini: a window of 262,144 tokens, and requests of at most 131,072."""
    wide = LLAMA | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 262_144}
    assert layout(wide).bytes_per_token_per_gpu == 131_072
    assert layout(wide).windowed_bytes_per_token_per_gpu == 0
    assert layout(wide | {"sliding_window": 2047}).bytes_per_token_per_gpu == 0


def test_layers_of_nemotron_by_letters_or_by_words() -> None:
    letters = config("nemotron-h-8b")
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    words = {key: value for key, value in letters.items() if key != "hybrid_override_pattern"}
    words["layers_block_type"] = [names[letter] for letter in letters["hybrid_override_pattern"]]
    assert from_config(words).layers == from_config(letters).layers
    with pytest.raises(PlanError, match="layers_block_type"):
        from_config(words | {"layers_block_type": ["mamba", "hyena"]})


def test_layers_of_lfm2_by_the_numbers_of_those_that_attend() -> None:
    named = config("lfm2-1.2b")
    types = named.pop("layer_types")
    attends = [i for i, kind in enumerate(types) if kind == "full_attention"]
    assert from_config(named | {"full_attn_idxs": attends}).layers == from_config(config("lfm2-1.2b")).layers


def test_blocks_of_nemotron_nas_that_do_not_attend_keep_nothing() -> None:
    blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}] * 16
    data = LLAMA | {"architectures": ["DeciLMForCausalLM"], "block_configs": blocks}
    assert layout(data).bytes_per_token_per_gpu == 131_072 // 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "compressed tokens"),
        ({"architectures": ["BrandNewForCausalLM"], "num_hidden_layers": 4}, "BrandNewForCausalLM"),
        ({"num_hidden_layers": 4}, "names neither architectures nor model_type"),
        ({"architectures": ["BrandNewForConditionalGeneration"], "text_config": LLAMA}, "BrandNew"),
    ],
)
def test_what_is_not_known_is_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        from_config(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "must be a JSON object"),
        ({key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}, "num_hidden_layers"),
        (LLAMA | {"num_key_value_heads": "eight"}, "num_key_value_heads .* 'eight'"),
        (LLAMA | {"num_key_value_heads": 0}, "is 0"),
        (LLAMA | {"num_hidden_layers": -1}, "0 or more"),
        (LLAMA | {"layer_types": ["full_attention"]}, "a list of 32 entries"),
        (LLAMA | {"layer_types": ["sliding_attention", *["full_attention"] * 31]}, "sliding_window"),
        (LLAMA | {"torch_dtype": "int3"}, "torch_dtype int3"),
        (config("lfm2-1.2b") | {"conv_L_cache": 1}, "a layer keeps nothing"),
        (config("deepseek-v3") | {"kv_lora_rank": 1, "qk_rope_head_dim": -1}, "qk_rope_head_dim"),
    ],
)
def test_what_is_wrong_in_a_configuration_is_named(data: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        layout_of(from_config(data), Flags())


@pytest.mark.parametrize("model", sorted({question["model"] for question in QUESTIONS.values()}))
def test_no_configuration_breaks_it(model: str) -> None:
    """Whatever stands at a key, or if nothing does: a plan, or a line that says what is wrong."""
    whole = config(model)
    for key in whole:
        for odd in ODD:
            with contextlib.suppress(PlanError):
                found = layout_of(from_config(whole | {key: odd}), Flags(max_model_len=4096))
                assert sizing_of(found, GIB).kv_cache_tokens >= 0


@pytest.mark.parametrize(
    ("model", "flags", "why"),
    [
        ("llama-3.1-8b", {"tensor": 3}, "divisor of the 32 attention heads"),
        ("llama-3.1-8b", {"tensor": 0}, "from 1 to"),
        ("llama-3.1-8b", {"pipeline": 33}, "the model has 32 layers"),
        ("llama-3.1-8b", {"tensor": 8, "context": 2}, "at most .* = 1"),
        ("llama-3.1-8b", {"tensor": 8, "context": 3}, "divisor of --tensor-parallel-size"),
        ("gemma-2-9b", {"tensor": 16, "context": 2}, "sliding window"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8_ds_mla"}, "for latent attention, which"),
        ("deepseek-v3", {"kv_cache_dtype": "nvfp4"}, "not for latent attention"),
        ("llama-3.1-8b", {"kv_cache_dtype": "int2"}, "known types are auto, "),
    ],
)
def test_flags_that_vllm_would_not_take(model: str, flags: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        layout(config(model), **flags)
