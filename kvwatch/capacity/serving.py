"""A running server: the lengths it serves compared with its cache, and which option would help most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwatch.capacity.kv_plan import Plan
from kvwatch.capacity.request_lengths import PERCENTILES
from kvwatch.capacity.units import thousands
from kvwatch.core.history.regimes import Regime
from kvwatch.core.history.window import quantile
from kvwatch.core.judgement.derive import capacity_tokens
from kvwatch.core.judgement.fits import ENOUGH_REQUESTS, Fits, engine_fits
from kvwatch.core.judgement.judge import max_model_len
from kvwatch.core.judgement.percentiles import LENGTHS
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import Histogram

_QUANTILES = dict(zip(PERCENTILES, (0.5, 0.95, 0.99), strict=True))
_ROUND = 1024
_OFF = 0.05
"""A plan this far from what the server reports is of another model, or of other options."""
_MARGIN = 1.5
"""A length limit leaves this much room above p99."""
_EIGHT_BIT = ("fp8", "int8", "int4", "nvfp4", "turboquant", "ultraquant")


@dataclass(frozen=True, slots=True)
class Served:
    """Lengths in tokens of the requests that finished since the server started.

    `total` adds prompt and output, each at the percentile, so it is an upper estimate. `at_least` names
    percentiles that are lower bounds, because they lie in the histogram's last bucket.
    """

    count: float = 0.0
    prompt: Mapping[str, int] = field(default_factory=dict)
    generation: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    at_least: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Server:
    """What a server exposes about itself. Of several engines, the numbers are those of the busiest one."""

    url: str
    model_name: str
    engines: int
    served: Served
    max_model_len: int | None
    block_size: int | None
    num_blocks: int | None
    cache_dtype: str | None
    capacity_tokens: float | None
    capacity_reason: str
    max_concurrency: float | None
    hybrid: bool
    running: float | None
    waiting: float | None
    usage: float | None
    demand: float | None
    regime: Regime
    fits: Fits | None = None
    """How many requests of these lengths fit at once: the same number as in findings."""

    @property
    def eight_bit(self) -> bool:
        return bool(self.cache_dtype and self.cache_dtype.startswith(_EIGHT_BIT))


@dataclass(frozen=True, slots=True)
class Option:
    """One change: its effect, and how many times as many requests fit; None if unknown."""

    change: str
    effect: str
    times: float | None


@dataclass(frozen=True, slots=True)
class ServerAdvice:
    """What follows: `fits` are requests of each percentile that fit at once, `helps_most` a change, if one helps."""

    server: Server
    plan: Plan | None
    fits: Mapping[str, float]
    options: Sequence[Option]
    helps_most: str | None
    why: str

    @property
    def contradiction(self) -> str:
        """Why `--config` can't be that of the running server; empty if it may be."""
        server, plan, planned = self.server, self.plan, self.planned
        if plan is None:
            return ""
        longest = plan.layout.model.max_len
        if longest is not None and server.max_model_len is not None and server.max_model_len > longest:
            return (
                f"it allows {thousands(longest)} tokens at most, the server {thousands(server.max_model_len)}"
            )
        if (
            planned is not None
            and server.max_concurrency
            and abs(planned[1] / server.max_concurrency - 1) > _OFF
        ):
            return f"{planned[1]:.2f} full requests fit by it, and the server reports {server.max_concurrency:.2f}"
        if (
            planned is not None
            and server.capacity_tokens
            and abs(planned[0] / server.capacity_tokens - 1) > _OFF
        ):
            reported = thousands(server.capacity_tokens)
            return f"{thousands(planned[0])} tokens fit by it, and the server reports {reported}"
        return ""

    @property
    def planned(self) -> tuple[int, float] | None:
        """Tokens and full requests at once, planned from the server's own number of blocks."""
        sizing = self.plan.sizing if self.plan else None
        if sizing is None or sizing.max_concurrency is None:
            return None
        return sizing.kv_cache_tokens, sizing.max_concurrency

    def as_data(self) -> dict[str, Any]:
        server, served = self.server, self.server.served
        return {
            "url": server.url,
            "model_name": server.model_name,
            "engines": server.engines,
            "requests_counted": served.count,
            "prompt_tokens": dict(served.prompt),
            "generation_tokens": dict(served.generation),
            "total_tokens": dict(served.total),
            "at_least": sorted(served.at_least),
            "max_model_len": server.max_model_len,
            "num_gpu_blocks": server.num_blocks,
            "block_size": server.block_size,
            "cache_dtype": server.cache_dtype,
            "kv_cache_size_tokens": server.capacity_tokens,
            "kv_cache_max_concurrency": server.max_concurrency,
            "config_contradiction": self.contradiction or None,
            "planned_tokens": self.planned[0] if self.planned else None,
            "planned_max_concurrency": self.planned[1] if self.planned else None,
            "fits": server.fits.as_data() if server.fits else None,
            "fits_at_once": dict(self.fits),
            "requests_running": server.running,
            "requests_waiting": server.waiting,
            "kv_cache_usage_ratio": server.usage,
            "regime": str(server.regime),
            "options": [
                {"change": one.change, "effect": one.effect, "times": one.times} for one in self.options
            ],
            "helps_most": self.helps_most,
            "why": self.why,
        }


def served_lengths(histograms: Iterable[Mapping[str, Histogram]], least: float) -> Served:
    """The lengths over all engines of a model; fewer than `least` requests give nothing but their number."""
    prompt, generation = (_added(engine.get(signal) for engine in list(histograms)) for signal in LENGTHS)
    count = min(prompt.count, generation.count) if prompt and generation else 0.0
    if prompt is None or generation is None or count < max(least, 1.0):
        return Served(count)
    names: dict[str, tuple[int, int]] = {}
    beyond = set()
    for name, q in _QUANTILES.items():
        pair = quantile(prompt, q), quantile(generation, q)
        if pair[0] is None or pair[1] is None:
            return Served(count)
        names[name] = round(pair[0].value), round(pair[1].value)
        if pair[0].at_least or pair[1].at_least:
            beyond.add(name)
    return Served(
        count,
        {name: one for name, (one, _) in names.items()},
        {name: one for name, (_, one) in names.items()},
        {name: max(sum(pair), 1) for name, pair in names.items()},
        frozenset(beyond),
    )


def server_of(url: str, state: State, least: float) -> Server:
    """The engines of one model as one server: the lengths of all of them, and the gauges of the busiest.

    `least` is the number of requests below which lengths are unknown. The state must have an engine.
    """
    name = next(iter(state.engines)).model_name
    engines = [engine for key, engine in state.engines.items() if key.model_name == name]
    busiest = max(engines, key=_load)
    snapshot, config = busiest.snapshot, busiest.snapshot.config
    tokens, reason = capacity_tokens(snapshot)
    longest = max_model_len(state, busiest)
    return Server(
        url=url,
        model_name=name,
        engines=len(engines),
        served=served_lengths([engine.raw_histograms for engine in engines], least),
        max_model_len=None if longest is None else int(longest),
        block_size=None if config.block_size is None else int(config.block_size),
        num_blocks=None if config.num_gpu_blocks is None else int(config.num_gpu_blocks),
        cache_dtype=config.cache_dtype,
        capacity_tokens=tokens,
        capacity_reason=reason,
        max_concurrency=config.kv_cache_max_concurrency,
        hybrid=config.hybrid,
        running=snapshot.number("requests_running"),
        waiting=snapshot.number("requests_waiting"),
        usage=snapshot.number("kv_cache_usage_ratio"),
        demand=busiest.derived.get("kv_cache_demand_ratio"),
        regime=busiest.regime,
        fits=engine_fits(
            snapshot, busiest.derived, busiest.windows, busiest.raw_histograms, state.now or 0.0
        ),
    )


def _load(engine: EngineState) -> float:
    return sum(engine.snapshot.number(name) or 0.0 for name in ("requests_running", "requests_waiting"))


def advise(server: Server, plan: Plan | None, seqs: int | None) -> ServerAdvice:
    """What a server's lengths mean for its options. `seqs` is its `--max-num-seqs`, if known."""
    fits = {
        name: fit for name, at in server.served.total.items() if (fit := _fit(server, plan, at)) is not None
    }
    options = [*_shorter(server), *_sequences(server, seqs), *_fp8(server, plan)]
    helps, why = _most(server, options, seqs)
    return ServerAdvice(server, plan, fits, options, helps, why)


def _added(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Histograms of several engines as one; those of other buckets than the first are left out."""
    found = [one for one in histograms if one is not None and one.bounds]
    alike = [one for one in found if one.bounds == found[0].bounds]
    if not alike:
        return None
    return Histogram(
        sum(one.sum for one in alike),
        sum(one.count for one in alike),
        alike[0].bounds,
        tuple(sum(counts) for counts in zip(*(one.counts for one in alike), strict=True)),
    )


def _fit(server: Server, plan: Plan | None, length: int) -> float | None:
    if plan is not None and plan.sizing is not None:
        return plan.sizing.concurrency(length)
    if server.capacity_tokens is None or server.hybrid:
        return None
    return server.capacity_tokens / length


def _shorter(server: Server) -> list[Option]:
    """`--max-model-len` down to what is served: only from many requests, none of them in vLLM's last bucket."""
    served, p99, limit = server.served, server.served.total.get("p99"), server.max_model_len
    if not p99 or not limit:
        return []
    name = "--max-model-len"
    if "p99" in served.at_least:
        return [Option(name, f"p99 is above {thousands(p99)} tokens, in vLLM's last bucket: no advice", None)]
    if served.count < ENOUGH_REQUESTS:
        return [
            Option(
                name, f"{thousands(served.count)} requests served are too few to lower it: no advice", None
            )
        ]
    wanted = -(-int(p99 * _MARGIN) // _ROUND) * _ROUND
    if wanted >= limit:
        return [Option(name, f"{thousands(limit)} is close to what is served (p99 {thousands(p99)})", None)]
    return [
        Option(
            f"{name} {wanted}",
            f"the limit is {limit / p99:.1f} × p99. A lower one frees no blocks: it bounds the longest request. Of"
            f" {thousands(served.count)} requests at most {thousands(served.count / 100)} were longer than p99."
            f" Above {thousands(wanted)} tokens they would be rejected",
            limit / wanted,
        )
    ]


def _sequences(server: Server, seqs: int | None) -> list[Option]:
    """`--max-num-seqs` to what fits."""
    if server.fits is None or server.fits.lower_bound:
        return []
    wanted = server.fits.requests
    name = f"--max-num-seqs {wanted}"
    if seqs is None:
        return [Option(name, f"{wanted} requests of these lengths fit at once", None)]
    if seqs <= wanted:
        return [Option(name, f"{seqs} now, {wanted} requests of these lengths fit", wanted / seqs)]
    return [Option(name, f"{seqs} now, {wanted} fit: if requests wait anyway, it ends the preemptions", None)]


def _fp8(server: Server, plan: Plan | None) -> list[Option]:
    if server.eight_bit or (plan is not None and plan.layout.dtype.sixteenths == 16):
        return [Option("--kv-cache-dtype fp8", f"the cache is already {server.cache_dtype or 'FP8'}", None)]
    times = 2.0
    if plan is not None:
        other = next((one for one in plan.variants if one.change == "--kv-cache-dtype fp8"), None)
        now, then = plan.sizing, other.sizing if other else None
        if now and then and now.max_concurrency and then.max_concurrency:
            times = then.max_concurrency / now.max_concurrency
    return [
        Option(
            "--kv-cache-dtype fp8",
            f"{times:.1f} × as many tokens; check scales and answer quality first",
            times,
        )
    ]


def _most(server: Server, options: Sequence[Option], seqs: int | None) -> tuple[str | None, str]:
    """The change that helps now, and why. A shorter `--max-model-len` never does: it frees no blocks."""
    fp8 = next((one for one in options if one.change.startswith("--kv-cache-dtype") and one.times), None)
    slots = next((one for one in options if one.change.startswith("--max-num-seqs")), None)
    if server.regime in {Regime.UNKNOWN, Regime.DOWN}:
        return None, "the reason why requests wait is unknown: the server does not expose enough"
    short_of_cache = server.regime is Regime.KV_LIMITED or (server.demand is not None and server.demand >= 1)
    if server.regime is Regime.SEQUENCE_LIMITED and slots is not None:
        return slots.change, "requests wait for batch slots"
    if short_of_cache and fp8 is not None:
        return fp8.change, "requests wait for the cache, and FP8 makes it hold more"
    if short_of_cache and slots is not None:
        return slots.change, "requests wait for the cache: admit only as many as fit"
    if server.waiting and slots is not None and (server.demand or 0) < 1:
        return slots.change, "requests wait although the cache has room: --max-num-seqs may be the limit"
    if server.fits is not None and seqs is not None and seqs > server.fits.requests:
        return None, f"nothing waits now; {server.fits.requests} requests of these lengths fit"
    return None, "nothing waits for the cache" + (
        f", and {server.fits.requests} requests of these lengths fit" if server.fits else ""
    )
