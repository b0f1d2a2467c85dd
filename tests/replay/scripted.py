"""A vLLM server that does what a scenario says, and a watch that polls it as kvwatch's poller does.

The pages are text as vLLM writes it, built from lines whose beginnings never change; histograms are bucket
counters. Narrow pages hold what was asked for, as `GET /metrics/?name[]=…` answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

from kvwatch.core.dialect.vllm import sample_names
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.policy import Policy
from kvwatch.core.model.outcome import Pace, Scrape, ScrapeError
from kvwatch.core.model.server_info import ServerInfo
from tests.replay.scenario import Phase, Scenario, Value, constant, read, seconds, whole
from tests.support.pages import MODEL, labelled
from tests.support.watch import WALL, Watch

#: Bounds as vLLM 0.32 has them.
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_STEPS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

#: The release that first exposed a family; older ones have it not.
_SINCE = {
    "num_requests_waiting_by_reason": (0, 20),
    "engine_sleep_state": (0, 11, 1),
    "external_prefix_cache_queries_total": (0, 11, 1),
    "external_prefix_cache_hits_total": (0, 11, 1),
    "prompt_tokens_by_source_total": (0, 16),
    "admission_rejections_total": (0, 32),
}
_SIZE_TOLD_SINCE = (0, 24)
_ITL_SINCE = (0, 10, 2)
_NEWEST = (0, 32)

_HELP = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "num_requests_waiting_by_reason": "Number of waiting requests by reason.",
    "engine_sleep_state": "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "gpu_cache_usage_perc": "GPU KV-cache usage. 1 means 100 percent usage.",
    "prefix_cache_queries_total": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits_total": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions_total": "Cumulative number of preemption from the engine.",
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "prompt_tokens_by_source_total": "Number of prompt tokens by source.",
    "generation_tokens_total": "Number of generation tokens processed.",
    "request_success_total": "Count of successfully processed requests.",
    "cache_config_info": "Information of the LLMEngine CacheConfig",
}

_SHAPE: Mapping[str, Value] = {
    "prompt": constant(200),
    "output": constant(50),
    "itl": constant(0.02),
    "hit": constant(0.5),
}
_TTFT_S = 0.05
_STEPS_PER_S = 20.0


class Ladder:
    """A histogram: cumulative counts at each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        for i in range(bisect_left(self.bounds, value), len(self.bounds)):
            self.counts[i] += times
        self.count += times
        self.sum += value * times

    def clear(self) -> None:
        self.counts[:] = [0] * len(self.bounds)
        self.count, self.sum = 0, 0.0


def _tokens(longest: float) -> tuple[float, ...]:
    """1, 2, 5, 10 … up to the longest request, as vLLM has them."""
    found, step = [], 1.0
    while step <= longest:
        found += [step * m for m in (1.0, 2.0, 5.0) if step * m <= longest]
        step *= 10
    return tuple(found)


class Engine:
    """One engine of a scripted server: its numbers, as they are after the time it ran to."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.name = name
        self.caching = scenario.settings.get("prefix_caching") != "off"
        self.phases = scenario.of(name)
        self.at = 0
        self.t = 0.0
        self.seen = 0
        self.served = 0
        self.gauges: dict[str, float] = {}
        self.totals: dict[str, float] = dict.fromkeys(_TOTALS, 0.0)
        self.totals.update({"queried": scenario.before.get("prompt", 0.0)}, **scenario.before)
        tokens = _tokens(float(scenario.settings.get("max_model_len", 131072)))
        self.ladders = {
            "ttft": Ladder(_TTFT),
            "itl": Ladder(_ITL),
            "queue": Ladder(_LATENCY),
            "prefill": Ladder(_LATENCY),
            "decode": Ladder(_LATENCY),
            "e2e": Ladder(_LATENCY),
            "prompt": Ladder(tokens),
            "output": Ladder(tokens),
            "steps": Ladder(_STEPS),
        }
        self._show()

    @property
    def phase(self) -> Phase:
        return self.phases[self.at]

    def run_to(self, t: float) -> None:
        """Works until `t`."""
        while self.t < t:
            stop = min(t, self.phase.stop)
            self._work(self.t, stop)
            self.t = stop
            if stop >= self.phase.stop and self.at + 1 < len(self.phases):
                self.at += 1
                self._enter()
        self.seen += 1
        self._show()

    def total(self, name: str) -> float:
        return float(whole(self.totals[name]))

    def _enter(self) -> None:
        if "restart" in self.phase.marks:
            self.totals = dict.fromkeys(self.totals, 0.0)
            for ladder in self.ladders.values():
                ladder.clear()
        for name in self.phase.resets:
            self.totals[name] = 0.0

    def _show(self) -> None:
        progress = self.phase.progress(min(self.t, self.phase.stop))
        given = self.phase.gauges
        self.gauges = {
            name: given[name].at(progress, self.seen) if name in given else 0.0
            for name in ("run", "wait", "kv", "deferred", "swapped")
        }
        for name in ("run", "wait", "deferred", "swapped"):
            self.gauges[name] = float(round(self.gauges[name]))
        self.gauges["awake"] = float("asleep" not in self.phase.marks)

    def _work(self, start: float, stop: float) -> None:
        phase, elapsed = self.phase, stop - start
        middle = phase.progress((start + stop) / 2)
        shape = {**_SHAPE, **phase.shape}
        amounts = {name: value.at(middle, self.seen) * elapsed for name, value in phase.flows.items()}
        done = amounts.get("done", 0.0)
        first = self._grow("first", amounts.get("first", done))
        lengths = [shape["prompt"].at(middle, self.served + i) for i in range(first)]
        prompts = amounts.get("prompt", sum(lengths))
        self._grow("prompt", prompts)
        if self.caching:
            queried = amounts.get("queried", prompts)
            self._grow("queried", queried)
            self._grow("hits", queried * shape["hit"].mean(middle))
        self._grow("reused", prompts * shape["hit"].mean(middle) if self.caching else 0.0)
        outputs = amounts.get("out", done * shape["output"].mean(middle))
        self._grow("out", outputs)
        for name in ("abort", "error", "preempt", "reject"):
            self._grow(name, amounts.get(name, 0.0))
        flowing = prompts > 0 or outputs > 0 or done > 0
        steps = self._grow("steps", amounts.get("steps", _STEPS_PER_S * elapsed if flowing else 0.0))
        self.ladders["steps"].observe((prompts + outputs) / max(steps, 1), steps)
        self._observe(shape, middle, first, self._grow("done", done))

    def _grow(self, name: str, amount: float) -> int:
        """Adds to a total; how many whole ones more it is."""
        before = whole(self.totals[name])
        self.totals[name] += amount
        return whole(self.totals[name]) - before

    def _observe(self, shape: Mapping[str, Value], progress: float, first: int, done: int) -> None:
        def of(name: str, k: int) -> float | None:
            return shape[name].at(progress, k) if name in shape else None

        for k in range(self.served, self.served + max(first, done)):
            queue, prefill = of("queue", k), of("prefill", k)
            ttft = of("ttft", k)
            if ttft is None:
                ttft = _TTFT_S if queue is None and prefill is None else (queue or 0.0) + (prefill or _TTFT_S)
            queue = queue if queue is not None else max(ttft - prefill, 0.0) if prefill is not None else 0.0
            if k < self.served + first:
                self.ladders["ttft"].observe(ttft)
            if k < self.served + done:
                itl, tokens = of("itl", k) or 0.0, round(of("output", k) or 1.0)
                self.ladders["queue"].observe(queue)
                self.ladders["prefill"].observe(prefill if prefill is not None else max(ttft - queue, 0.0))
                self.ladders["decode"].observe(itl * (tokens - 1))
                self.ladders["e2e"].observe(ttft + itl * (tokens - 1))
                self.ladders["itl"].observe(itl, max(tokens - 1, 0))
                self.ladders["prompt"].observe(of("prompt", k) or 0.0)
                self.ladders["output"].observe(tokens)
        self.served += max(first, done)


_TOTALS = (
    "done", "abort", "error", "first", "preempt", "reject", "prompt", "out", "queried", "hits", "reused", "steps",
)  # fmt: skip

Read = Callable[[], float]
Row = tuple[str, str, Read]
"""Sample name, the line up to the value, and where its value comes from."""


@dataclass
class Family:
    """A family of a page: its head, and its samples."""

    head: str
    rows: list[Row] = field(default_factory=list)


class Server:
    """A scripted server: engines, and the pages they make together."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        version = self.settings.get("version", "v1")
        self.v0 = version == "v0"
        self.version = _NEWEST if version in ("v0", "v1") else tuple(int(n) for n in version.split("."))
        self.without = frozenset(self.settings.get("without", "").split(","))
        self.engines = [Engine(scenario, name) for name in scenario.engines]
        self.started = WALL - (seconds(self.settings.get("up", "24h")) or 0.0)
        self.adapters: dict[str, float] = {}
        self.t = 0.0
        self._families = list(self._page())
        self._asked: tuple[frozenset[str] | None, list[Family]] = (None, self._families)

    def run_to(self, t: float) -> None:
        before = self.engines[0].at
        for engine in self.engines:
            engine.run_to(t)
        self.t = t
        phase = self.engines[0].phase
        if self.engines[0].at != before and "restart" in phase.marks:
            self.started = WALL + phase.start
            self.adapters = {}
        for engine in self.engines:
            if engine.phase.adapters is not None:
                self.adapters[self._adapters(engine.phase.adapters)] = WALL + t

    @property
    def phase(self) -> Phase:
        """The phase of the first engine: what is about the whole server is the same in all."""
        return self.engines[0].phase

    def page(self, asked: frozenset[str] | None = None) -> bytes:
        """The page, or only the samples asked for."""
        lines: list[str] = []
        for family in self._chosen(asked):
            lines.append(family.head)
            lines += [f"{start}{read()!r}\n" for _, start, read in family.rows]
        if asked is None and "max_lora" in self.settings:
            lines.append(_head("lora_requests_info", "gauge"))
            lines += [f"vllm:lora_requests_info{labels} {at!r}\n" for labels, at in self.adapters.items()]
        return "".join(lines).encode()

    @property
    def facts(self) -> ServerInfo:
        longest = self.settings.get("max_model_len")
        return ServerInfo(max_model_len={MODEL: int(longest)} if longest else None)

    def _chosen(self, asked: frozenset[str] | None) -> list[Family]:
        if asked is None:
            return self._families
        if self._asked[0] != asked:
            kept = [
                Family(family.head, rows)
                for family in self._families
                if (rows := [row for row in family.rows if row[0] in asked])
            ]
            self._asked = (asked, kept)
        return self._asked[1]

    # -- what is on a page --

    def _page(self) -> Iterator[Family]:
        for bare, kind, samples in (*self._v0_families(), *self._families_of_all(), *self._ladders()):
            if bare.removesuffix("_total") in self.without or _SINCE.get(bare, (0,)) > self.version:
                continue
            if self.v0 and bare in _SINCE:
                continue
            yield Family(_head(bare, kind), samples)
        if "cache_config_info" not in self.without:
            yield self._config()
        if not self.v0 and "process_start_time_seconds" not in self.without:
            head = (
                "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"
            )
            head += "# TYPE process_start_time_seconds gauge\n"
            row = (
                "process_start_time_seconds",
                "process_start_time_seconds ",
                partial(getattr, self, "started"),
            )
            yield Family(head, [row])

    def _rows(self, bare: str, read: Callable[[Engine], float], **labels: str) -> list[Row]:
        return [
            (f"vllm:{bare}", f"vllm:{bare}{self._own(engine, labels)} ", partial(read, engine))
            for engine in self.engines
        ]

    def _own(self, engine: Engine, labels: Mapping[str, str]) -> str:
        own = {} if self.v0 else {"engine": engine.name}
        return labelled(dict(sorted({**own, "model_name": MODEL, **labels}.items())))

    def _families_of_all(self) -> Iterator[tuple[str, str, list[Row]]]:
        yield "num_requests_running", "gauge", self._rows("num_requests_running", _gauge("run"))
        yield "num_requests_waiting", "gauge", self._rows("num_requests_waiting", _gauge("wait"))
        for bare, label, parts in (
            (
                "num_requests_waiting_by_reason",
                "reason",
                {"capacity": _capacity, "deferred": _gauge("deferred")},
            ),
            (
                "engine_sleep_state",
                "sleep_state",
                {"awake": _gauge("awake"), "weights_offloaded": _asleep, "discard_all": _nought},
            ),
        ):
            yield (
                bare,
                "gauge",
                [row for p, of in parts.items() for row in self._rows(bare, of, **{label: p})],
            )
        if not self.v0:
            yield "kv_cache_usage_perc", "gauge", self._rows("kv_cache_usage_perc", _gauge("kv"))
        for bare, name in _COUNTERS.items():
            if not (self.v0 and "cache" in bare):
                yield bare, "counter", self._rows(bare, _total(name))
        for bare, label, counted in (
            ("prompt_tokens_by_source_total", "source", _SOURCES),
            ("request_success_total", "finished_reason", _FINISHED),
        ):
            parts = {part: _total(name) if name else _nought for part, name in counted.items()}
            yield (
                bare,
                "counter",
                [row for p, of in parts.items() for row in self._rows(bare, of, **{label: p})],
            )
        rejected = "admission_rejections_total"
        labels = labelled({"model_name": MODEL, "reason": "max_num_queued_reqs"})
        row = (f"vllm:{rejected}", f"vllm:{rejected}{labels} ", self._rejected)
        yield rejected, "counter", [row]

    def _v0_families(self) -> Iterator[tuple[str, str, list[Row]]]:
        if self.v0:
            yield "gpu_cache_usage_perc", "gauge", self._rows("gpu_cache_usage_perc", _gauge("kv"))
            yield "num_requests_swapped", "gauge", self._rows("num_requests_swapped", _gauge("swapped"))
            yield "cpu_cache_usage_perc", "gauge", self._rows("cpu_cache_usage_perc", _nought)

    def _ladders(self) -> Iterator[tuple[str, str, list[Row]]]:
        for bare, name in _HISTOGRAMS.items():
            old = name == "itl" and (self.v0 or self.version < _ITL_SINCE)
            yield self._ladder("time_per_output_token_seconds" if old else bare, name)

    def _ladder(self, bare: str, name: str) -> tuple[str, str, list[Row]]:
        rows: list[Row] = []
        for engine in self.engines:
            ladder = engine.ladders[name]
            for i, bound in enumerate(ladder.bounds):
                labels = self._own(engine, {"le": repr(bound)})
                rows.append((f"vllm:{bare}_bucket", f"vllm:{bare}_bucket{labels} ", partial(_nth, ladder, i)))
            labels = self._own(engine, {"le": "+Inf"})
            rows.append((f"vllm:{bare}_bucket", f"vllm:{bare}_bucket{labels} ", partial(_count, ladder)))
            own = self._own(engine, {})
            rows.append((f"vllm:{bare}_count", f"vllm:{bare}_count{own} ", partial(_count, ladder)))
            rows.append((f"vllm:{bare}_sum", f"vllm:{bare}_sum{own} ", partial(attrgetter("sum"), ladder)))
        return bare, "histogram", rows

    def _config(self) -> Family:
        """The cache configuration: under data parallelism each engine's has the blocks of all."""
        settings = self.settings
        blocks, size = int(settings.get("blocks", 1000)), int(settings.get("block_size", 16))
        labels = {
            "block_size": str(size),
            "cache_dtype": settings.get("cache_dtype", "auto"),
            "enable_prefix_caching": str(settings.get("prefix_caching", "on") == "on"),
            "gpu_memory_utilization": settings.get("gpu_memory_utilization", "0.92"),
            "num_gpu_blocks": str(blocks * len(self.engines)),
            "sliding_window": "None",
        }
        if not self.v0 and self.version >= _SIZE_TOLD_SINCE:
            labels["kv_cache_size_tokens"] = settings.get("kv_tokens", str(blocks * size))
        labels |= self.scenario.config
        bare = "vllm:cache_config_info"
        rows: list[Row] = []
        for engine in self.engines:
            own = {} if self.v0 else {"engine": engine.name}
            said = labelled(dict(sorted({**labels, **own}.items())))
            rows.append((bare, f"{bare}{said} ", lambda: 1.0))
        return Family(_head("cache_config_info", "gauge"), rows)

    def _adapters(self, names: tuple[str, str]) -> str:
        running, waiting = names
        labels = {"max_lora": self.settings.get("max_lora", "1")}
        return labelled({**labels, "running_lora_adapters": running, "waiting_lora_adapters": waiting})

    def _rejected(self) -> float:
        return sum(engine.total("reject") for engine in self.engines)


_COUNTERS = {
    "prefix_cache_queries_total": "queried",
    "prefix_cache_hits_total": "hits",
    "external_prefix_cache_queries_total": "",
    "external_prefix_cache_hits_total": "",
    "num_preemptions_total": "preempt",
    "prompt_tokens_total": "prompt",
    "generation_tokens_total": "out",
}
_SOURCES = {"local_compute": "computed", "local_cache_hit": "reused", "external_kv_transfer": ""}
_FINISHED = {"stop": "done", "length": "", "abort": "abort", "error": "error", "repetition": ""}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "request_queue_time_seconds": "queue",
    "request_prefill_time_seconds": "prefill",
    "request_decode_time_seconds": "decode",
    "e2e_request_latency_seconds": "e2e",
    "request_prompt_tokens": "prompt",
    "request_generation_tokens": "output",
    "iteration_tokens_total": "steps",
}


def _head(bare: str, kind: str) -> str:
    return f"# HELP vllm:{bare} {_HELP.get(bare, 'As vLLM says.')}\n# TYPE vllm:{bare} {kind}\n"


def _gauge(name: str) -> Callable[[Engine], float]:
    return lambda engine: engine.gauges[name]


def _total(name: str) -> Callable[[Engine], float]:
    if name == "computed":
        return lambda engine: engine.total("prompt") - engine.total("reused")
    return (lambda engine: engine.total(name)) if name else _nought


def _capacity(engine: Engine) -> float:
    return engine.gauges["wait"] - engine.gauges["deferred"]


def _asleep(engine: Engine) -> float:
    return 1.0 - engine.gauges["awake"]


def _nought(_engine: Engine) -> float:
    return 0.0


def _nth(ladder: Ladder, i: int) -> float:
    return float(ladder.counts[i])


def _count(ladder: Ladder) -> float:
    return float(ladder.count)


# -- watching it ------------------------------------------------------------------------------------------------


def play(scenario: Scenario | Path, until: float | None = None) -> Watch:
    """A watch that saw a scenario, whole or until a moment; its clock shows seconds from the beginning."""
    scenario = read(scenario) if isinstance(scenario, Path) else scenario
    server = Server(scenario)
    ceiling = scenario.settings.get("max_num_seqs")
    policy = Policy(max_num_seqs=float(ceiling) if ceiling else None)
    watch = Watch(policy, now=0.0, interval=scenario.every)
    end = scenario.end if until is None else min(until, scenario.end)
    for n in range(int(end / scenario.every) + 1):
        t = n * scenario.every
        server.run_to(t)
        if "gap" not in server.phase.marks:
            _poll(watch, server, t)
    return watch


def _poll(watch: Watch, server: Server, t: float) -> None:
    phase, after = server.phase, t - watch.now
    if "down" in phase.marks:
        watch.outcome(
            ScrapeError(phase.failure, "as the scenario says", WALL + t, 0.001, watch.interval), after
        )
        return
    pace = next_pace(watch.state, t)
    whole_page = pace is Pace.FULL or server.settings.get("scrape") == "full"
    asked = None
    if not whole_page:
        asked = frozenset(sample_names(watch.policy.vocabulary, watch.state.exposed, pace))
    facts = server.facts if pace is Pace.FULL else None
    scrape = Scrape(
        server.page(asked), WALL + t, 0.001, watch.interval, pace, narrowed=asked is not None, facts=facts
    )
    watch.outcome(scrape, after)
