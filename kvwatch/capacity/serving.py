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
from kvwatch.core.judgement.judge import max_model_len
from kvwatch.core.judgement.percentiles import LENGTHS
from kvwatch.core.judgement.state import EngineState, State
from kvwatch.core.model.snapshot import Histogram

_QUANTILES = dict(zip(PERCENTILES, (0.5, 0.95, 0.99), strict=True))
_ROUND = 1024
_ROOM = 2
"""A limit of so many times p99 leaves something to gain by lowering it."""
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
class Advice:
    """What follows: `fits` are requests of each percentile that fit at once, `helps_most` a change, if one helps."""

    server: Server
    plan: Plan | None
    fits: Mapping[str, float]
    options: Sequence[Option]
    helps_most: str | None
    why: str

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
            "planned_tokens": self.planned[0] if self.planned else None,
            "planned_max_concurrency": self.planned[1] if self.planned else None,
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
    )


def _load(engine: EngineState) -> float:
    return sum(engine.snapshot.number(name) or 0.0 for name in ("requests_running", "requests_waiting"))


def advise(server: Server, plan: Plan | None, seqs: int | None) -> Advice:
    """What a server's lengths mean for its options. `seqs` is its `--max-num-seqs`, if known."""
    fits = {
        name: fit for name, at in server.served.total.items() if (fit := _fit(server, plan, at)) is not None
    }
    options = [*_shorter(server), *_sequences(fits, seqs), *_fp8(server, plan)]
    helps, why = _most(server, fits, options, seqs)
    return Advice(server, plan, fits, options, helps, why)


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
    """`--max-model-len` down to what is served."""
    p99, limit = server.served.total.get("p99"), server.max_model_len
    if not p99 or not limit:
        return []
    wanted = -(-p99 // _ROUND) * _ROUND
    if wanted >= limit:
        return [
            Option(
                "--max-model-len",
                f"{thousands(limit)} is already close to the served lengths (p99 {thousands(p99)})",
                None,
            )
        ]
    return [
        Option(
            f"--max-model-len {wanted}",
            f"the limit is {limit / p99:.1f} × p99. A lower limit shrinks the longest possible request to"
            f" {wanted / limit:.0%}, so {limit / wanted:.1f} × as many of the longest fit. Requests of the"
            " current lengths need as many blocks as before",
            limit / wanted,
        )
    ]


def _sequences(fits: Mapping[str, float], seqs: int | None) -> list[Option]:
    """`--max-num-seqs` to what fits at p95."""
    fit = fits.get("p95")
    if fit is None:
        return []
    wanted = max(1, int(fit))
    if seqs is None:
        return [
            Option(
                f"--max-num-seqs {wanted}",
                f"{wanted} requests of p95 length fit: more are preempted, fewer leave room unused",
                None,
            )
        ]
    if seqs <= wanted:
        return [Option(f"--max-num-seqs {wanted}", f"{seqs} now, {wanted} of p95 length fit", wanted / seqs)]
    return [
        Option(
            f"--max-num-seqs {wanted}",
            f"{seqs} now; {wanted} of p95 length fit, the others are preempted",
            None,
        )
    ]


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


def _most(
    server: Server, fits: Mapping[str, float], options: Sequence[Option], seqs: int | None
) -> tuple[str | None, str]:
    """The change that helps now, and why."""
    gains = {one.change.split()[0]: one for one in options if one.times is not None and one.times > 1}
    fp8, shorter = gains.get("--kv-cache-dtype"), gains.get("--max-model-len")
    wanted = next((one for one in options if one.change.startswith("--max-num-seqs")), None)
    if server.regime in {Regime.UNKNOWN, Regime.DOWN}:
        return None, "the reason why requests wait is unknown: the server does not expose enough"
    short_of_cache = server.regime is Regime.KV_LIMITED or (server.demand is not None and server.demand >= 1)
    if short_of_cache and fp8 is not None:
        return (
            fp8.change,
            "requests wait for the cache, and FP8 makes it hold more",
        )
    if short_of_cache and wanted is not None:
        return wanted.change, "requests wait for the cache: admit only as many as fit"
    if server.waiting and wanted is not None and (server.demand or 0) < 1:
        return (
            wanted.change,
            "requests wait although the cache has room: --max-num-seqs may be the limit",
        )
    if shorter is not None and (shorter.times or 0) >= _ROOM:
        return (
            shorter.change,
            (
                "no request waits, but the limit is far above the served lengths: one long request can take the"
                " room of many"
            ),
        )
    if wanted is not None and seqs is not None and wanted.times is None:
        return wanted.change, "no request waits now, but more requests are admitted than fit"
    return None, "no request waits for the cache" + (
        f", and {fits['p95']:.0f} requests of p95 length fit" if "p95" in fits else ""
    )
