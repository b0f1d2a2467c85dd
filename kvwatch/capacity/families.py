"""The models that can be planned: a row for each way of caching, with its architectures in vLLM 0.32.

An architecture in no row is refused. Plain ones are listed too: a class that looks plain may keep a window or a state
that its configuration names as its author liked, and a wrong number is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvwatch.capacity import layers, states
from kvwatch.capacity.config import Config
from kvwatch.capacity.layers import Layers


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One way of caching.

    `read` gives the caches of every layer. `caution` is what its numbers leave out. `block_size` is the default where
    the attention backends of this family take no smaller one.
    """

    title: str
    read: Callable[[Config], Layers]
    architectures: tuple[str, ...]
    caution: str = ""
    block_size: int = 16


FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(
        "attention",
        layers.plain,
        (
            "LlamaForCausalLM", "LLaMAForCausalLM", "InternLM3ForCausalLM", "IQuestCoderForCausalLM",
            "TeleChat3ForCausalLM", "Ministral3ForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM",
            "PhiMoEForCausalLM", "ApertusForCausalLM", "ArceeForCausalLM", "BailingMoeForCausalLM",
            "BailingMoeV2ForCausalLM", "BloomForCausalLM", "CohereForCausalLM", "DeepseekForCausalLM",
            "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "ExaoneForCausalLM", "GemmaForCausalLM",
            "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GPT2LMHeadModel", "GPTJForCausalLM", "GraniteForCausalLM",
            "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM", "HYV3ForCausalLM", "InternLM2ForCausalLM",
            "MiMoForCausalLM", "MiniCPMForCausalLM", "MiniMaxM2ForCausalLM", "NemotronForCausalLM",
            "OlmoeForCausalLM", "OPTForCausalLM", "OrionForCausalLM", "SolarForCausalLM", "StableLmForCausalLM",
            "TeleChat2ForCausalLM", "TeleFLMForCausalLM", "Starcoder2ForCausalLM", "Olmo2ForCausalLM",
            "Phi3VForCausalLM", "Phi4MMForCausalLM",
            # run by vLLM on transformers' own classes
            "CwmForCausalLM", "GlmForCausalLM", "GPTNeoXForCausalLM", "HunYuanDenseV1ForCausalLM",
            "HunYuanMoEV1ForCausalLM", "OlmoForCausalLM", "PhiForCausalLM", "SeedOssForCausalLM",
            "SmolLM3ForCausalLM",
        ),
    ),
    ModelFamily(
        "attention",
        layers.switched,
        ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
    ),
    ModelFamily("attention, one KV head for all", layers.falcon, ("FalconForCausalLM", "GPTBigCodeForCausalLM")),
    ModelFamily("attention, KV heads by group", layers.chatglm, ("ChatGLMModel", "ChatGLMForConditionalGeneration")),
    ModelFamily("attention", layers.dbrx, ("DbrxForCausalLM",)),
    ModelFamily("sliding window on all layers", layers.always(4096), ("MistralForCausalLM",)),
    ModelFamily("sliding window on every second layer", layers.alternating(2, 4096), ("Gemma2ForCausalLM",)),
    ModelFamily(
        "sliding window, one layer in six looks at everything",
        layers.alternating(6, 4096),
        ("Gemma3ForCausalLM",),
    ),
    ModelFamily(
        "sliding window, one layer in four looks at everything",
        layers.alternating(4, 4096, wider=1),
        ("Cohere2ForCausalLM",),
    ),
    ModelFamily(
        "sliding window, one layer in four looks at everything",
        layers.alternating(4, 4096),
        ("Exaone4ForCausalLM", "Olmo3ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    ),
    ModelFamily("attention, KV heads by layer", layers.by_blocks, ("DeciLMForCausalLM",)),
    ModelFamily("sliding window on every second layer", layers.gpt_oss, ("GptOssForCausalLM",)),
    ModelFamily("chunked local attention", layers.chunked, ("Llama4ForCausalLM",)),
    ModelFamily("sliding window, last layers share caches", layers.shared(5), ("Gemma3nForCausalLM",)),
    ModelFamily("sliding window, heads of two sizes", layers.shared(6), ("Gemma4ForCausalLM",)),
    ModelFamily(
        "latent attention (MLA)",
        layers.latent,
        (
            "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "AXK1ForCausalLM",
            "SarvamMLAForCausalLM", "MistralLarge3ForCausalLM",
        ),
        "some GPUs' backends for latent attention take blocks of 32, 64 or 128 tokens only",
    ),
    ModelFamily(
        "latent attention with a sparse indexer",
        layers.sparse,
        ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        block_size=64,
    ),
    ModelFamily("Mamba and attention", states.jamba, ("JambaForCausalLM",)),
    ModelFamily("Mamba 2 and attention", states.nemotron_h, ("NemotronHForCausalLM",)),
    ModelFamily("Mamba 2 and attention", states.granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
    ModelFamily("Mamba 2 and attention in each layer", states.falcon_h1, ("FalconH1ForCausalLM",)),
    ModelFamily(
        "linear attention (gated delta net) and attention",
        states.linear,
        ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "OlmoHybridForCausalLM"),
    ),
    ModelFamily("short convolutions and attention", states.short_conv, ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")),
    ModelFamily("Mamba", states.mamba, ("MambaForCausalLM", "FalconMambaForCausalLM")),
    ModelFamily("Mamba 2", states.mamba2, ("Mamba2ForCausalLM",)),
    ModelFamily("encoder and decoder with cross attention", layers.whisper, ("WhisperForConditionalGeneration",)),
    ModelFamily(
        "attention, cross attention counted as attention",
        layers.unwindowed,
        ("MllamaForConditionalGeneration",),
        "vLLM left this architecture out after 0.10.2; before, every text layer had blocks for every text token",
    ),
)  # fmt: skip
BY_ARCHITECTURE: Mapping[str, ModelFamily] = {name: row for row in FAMILIES for name in row.architectures}
#: Why some well-known architectures are in no row.
REFUSED: Mapping[str, str] = {
    "DeepseekV4ForCausalLM": "it keeps compressed tokens, windows and states in blocks of several sizes, packed by"
    " the attention backend: read the capacity in vLLM's log, for every change of a flag anew",
    "KimiLinearForCausalLM": "the state of its linear attention has a shape of the backend's own",
    "MiniMaxM3SparseForCausalLM": "its sparse attention keeps caches of its backend's own",
    "Step3p5ForCausalLM": "its layers differ in heads and windows by settings of their own",
    "MiMoV2FlashForCausalLM": "its layers differ in heads, sizes of K and V and windows",
    "LongcatFlashForCausalLM": "it has two attentions in each layer",
    "MiniCPM3ForCausalLM": "vLLM keeps its latent attention unfolded",
    "Qwen4ExpForCausalLM": "its states and sparse attention have several sizes",
    "Zamba2ForCausalLM": "it uses one attention layer in several places",
}
#: Models that see or hear: what they look with keeps nothing, so the text part is what counts.
WRAPPERS: frozenset[str] = frozenset(
    {
        "AriaForConditionalGeneration", "Cohere2VisionForConditionalGeneration", "DeepseekVLV2ForCausalLM",
        "Gemma3ForConditionalGeneration", "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration", "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration",
        "Idefics3ForConditionalGeneration", "InternVLChatModel", "InternVLForConditionalGeneration",
        "Lfm2VlForConditionalGeneration",
        "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration", "Llama4ForConditionalGeneration",
        "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration", "NemotronH_Nano_VL_V2", "PaliGemmaForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen3OmniMoeForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "SmolVLMForConditionalGeneration",
        "UltravoxModel", "VoxtralForConditionalGeneration",
    }
)  # fmt: skip
#: `model_type` of a text part -> its architecture, where the configuration does not name one.
BY_MODEL_TYPE: Mapping[str, str] = {
    "llama": "LlamaForCausalLM", "llama4_text": "Llama4ForCausalLM", "mistral": "MistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM", "mixtral": "MixtralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "aria_text": "LlamaForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM", "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "granite": "GraniteForCausalLM", "lfm2": "Lfm2ForCausalLM", "nemotron_h": "NemotronHForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM", "qwen2_vl_text": "Qwen2ForCausalLM", "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM", "gemma3n_text": "Gemma3nForCausalLM", "gemma4_text": "Gemma4ForCausalLM",
    "phi3": "Phi3ForCausalLM", "internlm2": "InternLM2ForCausalLM", "glm4v_text": "Glm4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM", "mllama": "MllamaForConditionalGeneration",
}  # fmt: skip
