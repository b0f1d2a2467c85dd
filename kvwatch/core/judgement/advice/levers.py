"""The levers: everything that can be changed about a vLLM server and the load on it, a row each.

A row says what it relieves, whether it needs a restart, what it costs, which vLLM has it, when the evidence allows
it, and the amount. A symptom names its levers in the order of expected relief against cost; `choose.py` leaves out
those that do not apply and puts those without a restart first.

Facts are those of vLLM 0.32; `source` says where they come from (files of vLLM, its documentation, pull requests).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.core.judgement.fits import ENOUGH_REQUESTS
from kvwatch.text.numbers import format_percent

Value = float | int | str
RESTART_COST = "running requests and the prefix cache are lost"
"""What each restart costs. vLLM aborts requests unless it was started with --shutdown-timeout."""
_UTILIZATION_STEP, _MAX_UTILIZATION = 0.02, 0.95
_LENGTH_MARGIN, _LENGTH_STEP = 1.5, 1024
_LONG_TAIL = 2.5
"""A p95 this many times the median is a long tail, which a cap or a route of its own relieves."""


class Resource(StrEnum):
    """What a lever relieves."""

    BLOCKS = "KV cache blocks"
    SLOTS = "batch slots"
    PREFILL = "prefill"
    BANDWIDTH = "memory bandwidth"
    ROUTING = "routing"
    NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing to do or to change. `text` is an imperative sentence without its stop; ``{value}`` is the amount.

    `option` is vLLM's flag, `restart` whether vLLM must be started again. `generations` and `feature` say which vLLM
    has it, `when` whether evidence and configuration allow it. `value` computes the amount; if it returns None, the
    lever is left out. `condition` is `when` in words, for runbooks. `unless` is the id of a lever that
    says the same with more: if that is offered, this is not.
    """

    id: str
    text: str
    relieves: Resource = Resource.NONE
    cost: str = ""
    option: str = ""
    restart: bool = False
    value: Callable[[Situation], Value | None] | None = None
    when: Callable[[Situation], bool] = lambda _: True
    condition: str = ""
    generations: tuple[str, ...] = ("v0", "v1")
    feature: str = ""
    unless: str = ""
    source: str = ""

    @property
    def general_text(self) -> str:
        """The text without a server: ``N`` is the amount that a finding computes."""
        text = self.text.format(value="N")
        return f"{text[0].upper()}{text[1:]}"


@dataclass(frozen=True, slots=True)
class DoNot:
    """A plausible step that would not help, or harm; `text` follows "do not"."""

    id: str
    text: str
    when: Callable[[Situation], bool] = lambda _: True


def step(
    id_: str, text: str, when: Callable[[Situation], bool] = lambda _: True, condition: str = ""
) -> Lever:
    """A step of diagnosis: it changes nothing."""
    return Lever(id=id_, text=text, when=when, condition=condition)


# -- without a restart ------------------------------------------------------------------------------------------


def _growth(at: Situation) -> str | None:
    share = at.room_for_load
    return None if share is None or share < 0.05 else format_percent(share)


def _output_cap(at: Situation) -> int | None:
    """The p95 of outputs, if a few are far longer than most: else a cap frees little."""
    usual = at.lengths.known("output_p50", count=ENOUGH_REQUESTS)
    long = at.lengths.known("output_p95", count=ENOUGH_REQUESTS)
    return round(long) if usual and long and long >= _LONG_TAIL * usual else None


def _long_request(at: Situation) -> int | None:
    """Requests longer than this go elsewhere: the p95 of whole lengths, if a few are far longer than most."""
    usual = at.lengths.known("total_p50", count=ENOUGH_REQUESTS)
    long = at.lengths.known("total_p95", count=ENOUGH_REQUESTS)
    return ceil(long / 100) * 100 if usual and long and long >= _LONG_TAIL * usual else None


def _missing_share(at: Situation) -> str | None:
    return f"{at.demand:.1f}" if at.demand is not None and at.demand >= 1.05 else None


WAIT_AND_WATCH = Lever(
    id="watch",
    text="nothing needs changing now: watch the queue",
    when=lambda at: not at.suffering and at.demand is not None and at.demand < 1 and _growth(at) is None,
    condition="if the cache holds what is wanted",
)
PLAN_CAPACITY = Lever(
    id="plan_capacity",
    text="nothing needs changing now; add capacity before the load grows by {value}",
    value=_growth,
    when=lambda at: not at.suffering,
)
ROUTE_BY_LOAD = Lever(
    id="route_by_load",
    text="route by load (fewest waiting first, or lowest KV cache usage): other engines of this server have room",
    relieves=Resource.ROUTING,
    cost="fewer prefix cache hits, unless the router knows prefixes, too",
    when=lambda at: at.room_elsewhere,
    source="LEVERS: a hot engine beside idle ones is a routing problem",
)
CAP_OUTPUT = Lever(
    id="cap_output",
    text="cap max_tokens at the gateway (p95 of outputs is {value} tokens)",
    relieves=Resource.BLOCKS,
    cost="longer answers are cut off",
    value=_output_cap,
    source="vLLM admits by prompt length and takes blocks as outputs grow (v1/core/kv_cache_manager.py)",
)
CAP_OUTPUT_UNMEASURED = Lever(
    id="cap_output",
    text="cap max_tokens at the gateway: outputs grow after admission",
    relieves=Resource.BLOCKS,
    cost="longer answers are cut off",
    when=lambda at: at.lengths.count < ENOUGH_REQUESTS or "output_p95" in at.lengths.at_least,
    source=CAP_OUTPUT.source,
)
ROUTE_LONG = Lever(
    id="route_long",
    text="send requests over {value} tokens (prompt and output) to a server of their own",
    relieves=Resource.BLOCKS,
    cost="needs a second server",
    value=_long_request,
    source="the guide, section 7: separate long requests",
)
SHED_LOAD = Lever(
    id="shed_load",
    text="add a replica, or shed load at the gateway: demand is {value} times what this cache holds",
    relieves=Resource.BLOCKS,
    cost="a replica starts cold; shed clients need back-off",
    value=_missing_share,
    when=lambda at: at.backlogged,
    source="the only lever that relieves blocks, slots, prefill and bandwidth at once",
)
ADD_REPLICA = Lever(
    id="add_replica",
    text="add a replica, or shed load at the gateway",
    relieves=Resource.SLOTS,
    cost="a replica starts cold; shed clients need back-off",
    when=lambda at: at.suffering,
    unless=SHED_LOAD.id,
    source=SHED_LOAD.source,
)
SMOOTH_BURSTS = Lever(
    id="smooth_load",
    text="smooth bursts at the gateway: send at most {value} requests at once",
    relieves=Resource.SLOTS,
    cost="requests wait at the gateway instead, where they can be routed elsewhere",
    value=lambda at: at.fits.requests if at.fits else None,
    when=lambda at: not at.backlogged,
)
IDENTICAL_PREFIX = Lever(
    id="identical_prefix",
    text="make system prompt and tool schema identical to the byte in all requests",
    relieves=Resource.PREFILL,
    source="the guide, section 12 C",
)
FIXED_TEXT_FIRST = Lever(
    id="fixed_text_first",
    text="order the template: fixed text first (system prompt, tools, examples), ids, dates and user data last",
    relieves=Resource.PREFILL,
    source="blocks match from the first token on (v1/core/kv_cache_utils.py)",
)
SHORTEN_PROMPTS = Lever(
    id="shorten_prompts",
    text="shorten prompts: fewer or smaller documents, less history, shorter tool descriptions",
    relieves=Resource.PREFILL,
    cost="answers have less context",
)
ROUTE_BY_PREFIX = Lever(
    id="route_by_prefix",
    text="route by prefix (sticky sessions): each conversation to the replica that holds its blocks",
    relieves=Resource.ROUTING,
    cost="load can become uneven",
)
WARM_UP = Lever(
    id="warm_up", text="send a few warm-up requests of the usual lengths before the server takes traffic"
)

SHARE_PREFIX = Lever(
    id="fixed_text_first",
    text="order the template: fixed text first, ids and user data last, so that requests share blocks",
    relieves=Resource.BLOCKS,
    when=lambda at: at.hit_ratio is not None and at.hit_ratio < 0.2 and (at.lengths.total_p50 or 0) >= 1000,
    condition="if long prompts share nothing yet",
)
ROUTE_LONG_UNMEASURED = Lever(
    id="route_long",
    text="give long requests a queue or a server of their own",
    relieves=Resource.BLOCKS,
    cost="needs a second server",
    when=lambda at: _long_request(at) is None,
)


def when_larger(lever: Lever, part: str) -> Lever:
    """The lever, offered only if `part` (queue or prefill) is the larger part of the time to first token."""
    inner = lever.when
    return replace(
        lever,
        when=lambda at: at.evidence.get("larger_part") == part and inner(at),
        condition=f"if {part} is the larger part",
    )


# -- with a restart ------------------------------------------------------------------------------------------


def _fewer_slots(at: Situation) -> int | None:
    """What fits, if more ran, and requests wait anyway: then fewer slots cost no waiting."""
    if at.fits is None or at.fits.lower_bound or at.most_running is None or not at.backlogged:
        return None
    return at.fits.requests if at.fits.requests < at.most_running else None


def _more_slots(at: Situation) -> int | None:
    """Half as many again, as far as the cache holds them."""
    now = at.ceiling or at.most_running
    if now is None:
        return None
    wanted = max(ceil(now * 1.5), int(now) + 1)
    room = at.fits.requests if at.fits else wanted
    return min(wanted, room) if min(wanted, room) > now else None


def _utilization(at: Situation) -> float | None:
    now = at.config.gpu_memory_utilization
    if now is None or now >= _MAX_UTILIZATION:
        return None
    return round(min(now + _UTILIZATION_STEP, _MAX_UTILIZATION), 2)


def _shorter_limit(at: Situation) -> int | None:
    p99 = at.lengths.known("total_p99", count=ENOUGH_REQUESTS)
    if p99 is None or at.max_model_len is None:
        return None
    wanted = ceil(p99 * _LENGTH_MARGIN / _LENGTH_STEP) * _LENGTH_STEP
    return wanted if wanted < at.max_model_len else None


FEWER_SLOTS = Lever(
    id="max_num_seqs",
    text="--max-num-seqs {value}: so many requests of these lengths fit",
    relieves=Resource.BLOCKS,
    cost="requests wait in the queue instead of being preempted",
    option="--max-num-seqs",
    restart=True,
    value=_fewer_slots,
    source="measured on vLLM 0.32: under overload it ends the preemptions at no cost; near capacity it makes first"
    " tokens many times later, so it is offered only while requests wait all the time",
)
FEWER_SLOTS_UNMEASURED = Lever(
    id="max_num_seqs",
    text="--max-num-seqs {value}, then fewer until prompts are no longer computed again",
    relieves=Resource.BLOCKS,
    cost=FEWER_SLOTS.cost,
    option="--max-num-seqs",
    restart=True,
    value=lambda at: int(at.most_running) - 1 if at.most_running and at.most_running > 1 else None,
    when=lambda at: at.fits is None and at.recomputing,
    condition="if prompts are computed again and again and lengths are unknown",
    source="vllm-project/vllm #21809: admission looks at the next chunk only",
)
MORE_SLOTS = Lever(
    id="max_num_seqs",
    text="--max-num-seqs {value}: the cache has room for more",
    relieves=Resource.SLOTS,
    cost="inter-token latency rises: watch it",
    option="--max-num-seqs",
    restart=True,
    value=_more_slots,
)
WATERMARK = Lever(
    id="watermark",
    text="--watermark {value}: keep blocks free at admission for requests that grow",
    relieves=Resource.BLOCKS,
    cost="first tokens come later",
    option="--watermark",
    restart=True,
    value=lambda _: 0.02,
    when=lambda at: at.backlogged,
    generations=("v1",),
    feature="watermark",
    source="vllm-project/vllm #44594: preemptions 1065 to 400 at 0.02, TTFT p50 6.6 to 11 s",
)
FP8_CACHE = Lever(
    id="kv_cache_dtype",
    text="--kv-cache-dtype {value}: about twice the tokens",
    relieves=Resource.BLOCKS,
    cost="check GPU and backend support, scales, and answer quality on long contexts first",
    option="--kv-cache-dtype",
    restart=True,
    value=lambda _: "fp8",
    when=lambda at: not at.eight_bit,
    source="docs.vllm.ai features/quantization/quantized_kvcache",
)
MORE_MEMORY = Lever(
    id="gpu_memory_utilization",
    text="--gpu-memory-utilization {value}, if nothing else uses the GPU",
    relieves=Resource.BLOCKS,
    cost="too high fails at start-up or under load with CUDA OOM",
    option="--gpu-memory-utilization",
    restart=True,
    value=_utilization,
    source="docs.vllm.ai configuration/optimization, Preemption: the first of its list; a small step, so it comes"
    " behind levers that relieve more",
)
TENSOR_PARALLEL = Lever(
    id="tensor_parallel_size",
    text="more GPUs: double --tensor-parallel-size",
    relieves=Resource.BLOCKS,
    cost="all-reduce traffic; slow without NVLink",
    option="--tensor-parallel-size",
    restart=True,
    source="docs.vllm.ai configuration/optimization, Preemption",
)
MORE_BATCHED_TOKENS = Lever(
    id="max_num_batched_tokens",
    text="double --max-num-batched-tokens",
    relieves=Resource.PREFILL,
    cost="inter-token latency rises, and the cache gets a little smaller",
    option="--max-num-batched-tokens",
    restart=True,
    source="vllm/engine/arg_utils.py (defaults by GPU); docs.vllm.ai configuration/optimization",
)
ENABLE_PREFIX_CACHING = Lever(
    id="enable_prefix_caching",
    text="--enable-prefix-caching, then watch the hit ratio: it helps only prompts that begin alike",
    relieves=Resource.PREFILL,
    option="--enable-prefix-caching",
    restart=True,
    when=lambda at: at.config.enable_prefix_caching is not True,
    condition="if it is off",
    source="off frees no memory: cached blocks without an owner count as free",
)
OFFLOAD = Lever(
    id="kv_offloading_size",
    text="--kv-offloading-size with the GiB of the reused prefixes: evicted blocks come back from host memory",
    relieves=Resource.PREFILL,
    cost="transfers add latency; running requests still need GPU blocks",
    option="--kv-offloading-size",
    restart=True,
    generations=("v1",),
    feature="preempted lookups excluded",  # 0.11.1 and newer, as the option
    source="vllm/config/cache.py: a second-level prefix cache",
)
LENGTH_LIMIT = Lever(
    id="max_model_len",
    text="--max-model-len {value} (p99 of whole requests and a margin)",
    cost="longer requests are rejected with HTTP 400; frees no block of a running server",
    option="--max-model-len",
    restart=True,
    value=_shorter_limit,
    source="vllm/v1/core/kv_cache_utils.py: blocks follow tokens, not the limit",
)
RESTART = Lever(id="restart", text="restart vLLM at a quiet time", restart=True)
QUANTIZED_WEIGHTS = Lever(
    id="quantized_weights",
    text="quantized weights or a smaller model: the memory they save becomes cache",
    relieves=Resource.BLOCKS,
    cost="answer quality",
    restart=True,
)

# -- do not ------------------------------------------------------------------------------------------

NOT_MORE_SLOTS = DoNot("max_num_seqs", "raise --max-num-seqs: the cache has no room for more requests")
NOT_FEWER_SLOTS = DoNot(
    "max_num_seqs",
    "lower --max-num-seqs: nothing is preempted, so it only lengthens the queue",
)
NOT_FEWER_SLOTS_NEAR_CAPACITY = DoNot(
    "max_num_seqs",
    "lower --max-num-seqs under this load: first tokens would come many times later",
    when=lambda at: not at.backlogged and not at.recomputing and (at.demand is None or at.demand < 1),
)
NOT_LENGTH_LIMIT = DoNot(
    "max_model_len",
    "lower --max-model-len: blocks are taken as tokens come, so it frees none",
)
NOT_OFFLOAD = DoNot(
    "kv_offloading_size", "offload KV cache for this: running requests need blocks on the GPU"
)
NOT_CACHE = DoNot("gpu_memory_utilization", "enlarge the KV cache: requests do not wait for it")
NOT_CACHE_IMBALANCE = DoNot("gpu_memory_utilization", "enlarge the KV cache: the other engines have room")
