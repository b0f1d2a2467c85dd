"""Pages for tests: those of real servers, and a made-up server whose numbers a test sets."""

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
CAPTURES = TESTS / "captures"
RECORDINGS = TESTS / "replay" / "recordings"

MODEL = "tiny"

#: Bounds as vLLM has them, shortened.
SECONDS = (0.01, 0.1, 0.5, 1.0, 2.5, 10.0, 40.0)
TOKENS = (10.0, 100.0, 1000.0, 2000.0, 5000.0, 10000.0)


@dataclass(frozen=True)
class RealPage:
    """A page of a real server. `place` is ``folder/scenario#line``."""

    place: str
    folder: str
    body: bytes
    content_type: str = ""


def polls(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@cache
def real_pages() -> tuple[RealPage, ...]:
    """Every whole page of the captures."""
    return tuple(_real_pages())


def _real_pages() -> Iterator[RealPage]:
    for path in sorted(CAPTURES.glob("vllm-*/*.jsonl.gz")):
        scenario = path.name.removesuffix(".jsonl.gz")
        for number, poll in enumerate(polls(path)):
            if poll["status"] == 200:
                place = f"{path.parent.name}/{scenario}#{number}"
                body = poll["body"].encode()
                yield RealPage(place, path.parent.name, body, poll.get("content_type", ""))


def labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


@dataclass
class Counted:
    """A histogram of a made-up server."""

    bounds: tuple[float, ...]
    seen: list[float] = field(default_factory=list)
    _counted: list[float] = field(default_factory=list)
    _sum: float = 0.0
    _upto: int = 0

    def _count(self) -> None:
        """Counts what was seen since it was last asked."""
        if not self._counted or len(self.seen) < self._upto:
            self._counted, self._sum, self._upto = [0] * len(self.bounds), 0.0, 0
        for value in self.seen[self._upto :]:
            self._sum += value
            for i in range(bisect_left(self.bounds, value), len(self.bounds)):
                self._counted[i] += 1
        self._upto = len(self.seen)

    def lines(self, name: str, labels: Mapping[str, str]) -> list[str]:
        self._count()
        found = [
            f"{name}_bucket{labelled({**labels, 'le': str(bound)})} {float(count)}"
            for bound, count in zip(self.bounds, self._counted, strict=True)
        ]
        return [
            *found,
            f"{name}_bucket{labelled({**labels, 'le': '+Inf'})} {len(self.seen)}.0",
            f"{name}_count{labelled(labels)} {len(self.seen)}.0",
            f"{name}_sum{labelled(labels)} {float(self._sum)}",
        ]


@dataclass
class Server:
    """A made-up vLLM server with one engine. Set its numbers, then take `page`.

    `config` are labels of its cache configuration, `without` bare names that it does not expose.
    """

    engine: str = "0"
    usage: float = 0.0
    running: float = 0
    waiting: float = 0
    deferred: float = 0
    awake: float = 1
    preemptions: float = 0
    prompt_tokens: float = 0
    generation_tokens: float = 0
    finished: float = 0
    aborted: float = 0
    errors: float = 0
    answered: float | None = None
    """Answers to POST requests, as the front end counts them."""
    tokenized: float = 0
    """Answers to requests that only tokenise, beside those."""
    rejected: float | None = None
    lora: bool = False
    queried: float = 0
    hits: float = 0
    started: float | None = 1_700_000_000
    ttft: Counted = field(default_factory=lambda: Counted(SECONDS))
    itl: Counted = field(default_factory=lambda: Counted(SECONDS))
    queue: Counted = field(default_factory=lambda: Counted(SECONDS))
    prefill: Counted = field(default_factory=lambda: Counted(SECONDS))
    e2e: Counted = field(default_factory=lambda: Counted(SECONDS))
    prompts: Counted = field(default_factory=lambda: Counted(TOKENS))
    outputs: Counted = field(default_factory=lambda: Counted(TOKENS))
    config: dict[str, str] = field(
        default_factory=lambda: {
            "block_size": "16",
            "num_gpu_blocks": "1000",
            "enable_prefix_caching": "True",
            "cache_dtype": "auto",
            "gpu_memory_utilization": "0.9",
        }
    )
    without: frozenset[str] = frozenset()
    counters: dict[str, float] = field(default_factory=dict)
    """Further counters, by vLLM's bare name without ``_total``."""

    def finish(
        self,
        count: int,
        *,
        prompt: float = 200,
        output: float = 50,
        ttft: float = 0.05,
        hit: float = 0.5,
        queued: float = 0.5,
        itl: float = 0.02,
    ) -> None:
        """`count` requests came and went; `queued` is the share of the time to the first token in the queue."""
        if self.answered is not None:
            self.answered += count
        self.finished += count
        self.prompt_tokens += count * prompt
        self.generation_tokens += count * output
        self.queried += count * prompt
        self.hits += count * prompt * hit
        self.prompts.seen += [prompt] * count
        self.outputs.seen += [output] * count
        self.ttft.seen += [ttft] * count
        self.queue.seen += [ttft * queued] * count
        self.prefill.seen += [ttft * (1 - queued)] * count
        self.e2e.seen += [ttft + output * itl] * count
        self.itl.seen += [itl] * count

    @property
    def page(self) -> str:
        gauges = {
            "kv_cache_usage_perc": self.usage,
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
        }
        counters = {
            "num_preemptions": self.preemptions,
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "prefix_cache_queries": self.queried,
            "prefix_cache_hits": self.hits,
            **self.counters,
        }
        split = {
            ("request_success_total", "counter", "finished_reason"): {
                "stop": self.finished,
                "length": 0,
                "abort": self.aborted,
                "error": self.errors,
            },
            ("num_requests_waiting_by_reason", "gauge", "reason"): {
                "capacity": self.waiting - self.deferred,
                "deferred": self.deferred,
            },
            ("engine_sleep_state", "gauge", "sleep_state"): {
                "awake": self.awake,
                "weights_offloaded": 1 - self.awake,
                "discard_all": 0,
            },
        }
        histograms = {
            "time_to_first_token_seconds": self.ttft,
            "inter_token_latency_seconds": self.itl,
            "request_queue_time_seconds": self.queue,
            "request_prefill_time_seconds": self.prefill,
            "e2e_request_latency_seconds": self.e2e,
            "request_prompt_tokens": self.prompts,
            "request_generation_tokens": self.outputs,
        }
        own = {"engine": self.engine, "model_name": MODEL}
        lines: list[str] = []

        def family(bare: str, kind: str, samples: list[str]) -> None:
            if bare.removesuffix("_total") not in self.without:
                lines.extend([f"# HELP vllm:{bare} Text.", f"# TYPE vllm:{bare} {kind}", *samples])

        for bare, value in gauges.items():
            family(bare, "gauge", [f"vllm:{bare}{labelled(own)} {float(value)!r}"])
        for bare, value in counters.items():
            family(f"{bare}_total", "counter", [f"vllm:{bare}_total{labelled(own)} {float(value)!r}"])
        for (bare, kind, label), parts in split.items():
            samples = [
                f"vllm:{bare}{labelled({**own, label: part})} {float(value)!r}"
                for part, value in parts.items()
            ]
            family(bare, kind, samples)
        for bare, histogram in histograms.items():
            family(bare, "histogram", histogram.lines(f"vllm:{bare}", own))
        config = labelled({**self.config, "engine": self.engine})
        family("cache_config_info", "gauge", [f"vllm:cache_config_info{config} 1.0"])
        if self.rejected is not None:
            reason = labelled({"model_name": MODEL, "reason": "max_num_queued_reqs"})
            sample = f"vllm:admission_rejections_total{reason} {float(self.rejected)!r}"
            family("admission_rejections_total", "counter", [sample])
        if self.answered is not None:
            route = labelled({"handler": "/v1/completions", "method": "POST", "status": "2xx"})
            lines += [
                "# TYPE http_requests_total counter",
                f"http_requests_total{route} {float(self.answered)!r}",
            ]
        if self.tokenized:
            route = labelled({"handler": "/tokenize", "method": "POST", "status": "2xx"})
            lines.append(f"http_requests_total{route} {float(self.tokenized)!r}")
        if self.lora:
            adapters = labelled({"max_lora": "1", "running_lora_adapters": "a", "waiting_lora_adapters": "b"})
            family("lora_requests_info", "gauge", [f"vllm:lora_requests_info{adapters} 1.7e+09"])
        if self.started is not None:
            lines += [
                "# HELP process_start_time_seconds Text.",
                "# TYPE process_start_time_seconds gauge",
                f"process_start_time_seconds {self.started!r}",
            ]
        return "\n".join(lines) + "\n"

    @property
    def body(self) -> bytes:
        return self.page.encode()
