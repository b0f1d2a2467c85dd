"""Does the advice work? Closes the loop on a real vLLM: load, finding, first lever, the same load again.

For each scenario: start vLLM, apply a load until the symptom fires, take the first lever that can be applied here,
with the amount that kvwatch computed, start vLLM again with it, repeat the same requests, and compare.
`make advice` runs it; `--only NAME` runs one scenario. It needs a vLLM that runs on this machine (a CPU is enough):

    VLLM="/path/to/venv/bin/vllm" MODEL=/path/to/model make advice

Results go to build/advice: recordings (``NAME-before``, ``NAME-after``), findings, the comparison, and the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
_START_S, _WARM_UP_S, _SETTLE_S = 180, 8, 5
_SHARED_SEED = 99


@dataclass(frozen=True)
class Load:
    """Requests per second (open loop, Poisson), and their lengths in tokens: a random head, a shared prefix, a random
    tail, and an output. `long_share` of them are `long` instead: tail and output."""

    rate: float
    tail: tuple[int, int]
    out: tuple[int, int]
    shared: int = 0
    head: int = 0
    seconds: float = 100.0
    long_share: float = 0.0
    long: tuple[int, int] = (0, 0)
    seed: int = 7

    def requests(self) -> Iterator[tuple[float, list[int], int]]:
        """Time, prompt (token ids) and output length of each, always the same."""
        draw, shared = random.Random(self.seed), random.Random(_SHARED_SEED)
        prefix = [shared.randint(300, 3999) for _ in range(self.shared)]
        at = 0.0
        while (at := at + draw.expovariate(self.rate)) < self.seconds:
            is_long = draw.random() < self.long_share
            tail, out = self.long if is_long else (draw.randint(*self.tail), draw.randint(*self.out))
            ids = random.Random(draw.random())
            own = [ids.randint(300, 3999) for _ in range(self.head + tail)]
            yield at, own[: self.head] + prefix + own[self.head :], out


@dataclass(frozen=True)
class Scenario:
    """What is started and sent, and which symptom must fire. `changes`: the load after a lever outside vLLM."""

    name: str
    symptom: str
    flags: Mapping[str, str]
    load: Load
    changes: Mapping[str, Load] = field(default_factory=dict)


def _cache(blocks: int, slots: int, length: int = 2048) -> dict[str, str]:
    return {
        "--max-model-len": str(length),
        "--block-size": "32",
        "--num-gpu-blocks-override": str(blocks),
        "--max-num-seqs": str(slots),
    }


_SHARED = Load(3.0, (16, 48), (8, 24), shared=1500, seconds=90)
SCENARIOS = (
    Scenario("thrashing", "kv_thrashing", _cache(128, 64), Load(1.6, (100, 400), (200, 500))),
    Scenario("exhausted", "kv_exhausted", _cache(96, 64), Load(3.0, (700, 1000), (24, 40))),
    Scenario("few-slots", "sequence_limited", _cache(2048, 4), Load(1.6, (32, 96), (100, 200))),
    Scenario(
        "prefix-caching-off",
        "shared_prefix_slow",
        _cache(512, 32, 4096) | {"--no-enable-prefix-caching": ""},
        _SHARED,
    ),
    Scenario(
        "varying-head",
        "shared_prefix_slow",
        _cache(512, 32, 4096),
        replace(_SHARED, head=8),
        changes={"identical_prefix": _SHARED, "fixed_text_first": _SHARED},
    ),
    Scenario(
        "long-request",
        "long_request_hogs_cache",
        _cache(128, 64),
        Load(1.2, (32, 96), (30, 80), long_share=0.06, long=(400, 1500)),
        changes={
            "route_long": Load(1.2, (32, 96), (30, 80)),
            "cap_output": Load(1.2, (32, 96), (30, 80), long_share=0.06, long=(400, 200)),
        },
    ),
    Scenario(
        "prefill-bound",
        "prefill_limited",
        _cache(2048, 64, 4096),
        Load(3.0, (1200, 1800), (2, 4), seconds=90),
        changes={"shorten_prompts": Load(3.0, (300, 450), (2, 4), seconds=90)},
    ),
)


@contextmanager
def server(flags: Mapping[str, str], log: Path) -> Iterator[None]:
    """A vLLM with these options, until the block ends."""
    words = [word for name, value in flags.items() for word in (name, value) if word]
    command = [*shlex.split(os.environ["VLLM"]), "serve", os.environ["MODEL"], "--host", "127.0.0.1"]
    command += [
        "--port",
        str(PORT),
        "--served-model-name",
        "model",
        "--dtype",
        "bfloat16",
        "--enforce-eager",
        *words,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_environment())
        try:
            _wait(process, log)
            yield
        finally:
            process.terminate()
            process.wait(60)


def _environment() -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **quiet, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended at its start: see {log}")
        try:
            if httpx.get(f"{URL}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)  # a server that loads has no event to wait for
    raise RuntimeError(f"vLLM did not start within {_START_S} s: see {log}")


async def _drive(load: Load) -> None:
    """Sends the requests at their times; what is open at the end is given up."""
    async with httpx.AsyncClient(
        base_url=URL, timeout=600, limits=httpx.Limits(max_connections=None)
    ) as client:

        async def send(prompt: list[int], out: int) -> None:
            body = {"model": "model", "prompt": prompt, "max_tokens": out, "ignore_eos": True}
            await client.post("/v1/completions", json=body)

        begun, tasks = time.monotonic(), set[asyncio.Task[None]]()
        for at, prompt, out in load.requests():
            await asyncio.sleep(max(begun + at - time.monotonic(), 0))
            tasks.add(asyncio.create_task(send(prompt, out)))
        await asyncio.sleep(max(begun + load.seconds - time.monotonic(), 0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(flags: Mapping[str, str], load: Load, out: Path) -> Path:
    """One recorded run of a load on a server with these options."""
    recording = out.with_suffix(".jsonl.gz")
    with server(flags, out.with_suffix(".log")):
        asyncio.run(_drive(Load(1.5, (40, 80), (8, 16), seconds=_WARM_UP_S, seed=3)))
        command = [
            *_kvwatch(),
            "record",
            URL,
            "-o",
            str(recording),
            "--force",
            "--label",
            out.name,
            "--no-progress",
        ]
        recorder = subprocess.Popen([*command, "--for", f"{load.seconds + 2 * _SETTLE_S:g}s"])
        time.sleep(_SETTLE_S)
        asyncio.run(_drive(load))
        recorder.wait(60)
    return recording


def _kvwatch() -> list[str]:
    return [sys.executable, "-m", "kvwatch"]


def _json(*words: str) -> Any:
    done = subprocess.run(
        [*_kvwatch(), *words, "--json"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def applied(action: Mapping[str, Any], scenario: Scenario) -> tuple[dict[str, str], Load] | None:
    """Options and load after an action; None if it can't be applied here."""
    flags, load = dict(scenario.flags), scenario.load
    if action["lever"] in scenario.changes:
        return flags, scenario.changes[action["lever"]]
    option, value = action["option"], action["value"]
    if option == "--enable-prefix-caching":
        flags.pop("--no-enable-prefix-caching", None)
        return flags, load
    if option == "--kv-cache-dtype":  # no FP8 cache on a CPU: twice the blocks, which is what it gives
        flags["--num-gpu-blocks-override"] = str(2 * int(flags["--num-gpu-blocks-override"]))
        return flags, load
    if option in {"--max-num-seqs", "--watermark", "--max-num-batched-tokens"} and value is not None:
        flags[option] = str(value)
        return flags, load
    return None


def seconds_firing(replayed: Mapping[str, Any], symptom: str) -> float:
    return float(replayed["symptoms"][symptom]["firing_s"])


def close_the_loop(scenario: Scenario, out: Path) -> dict[str, Any]:
    before = run(scenario.flags, scenario.load, out / f"{scenario.name}-before")
    replayed = _json("replay", str(before))
    finding = next((one for one in replayed["findings"] if one["symptom"] == scenario.symptom), None)
    row: dict[str, Any] = {"scenario": scenario.name, "symptom": scenario.symptom}
    row["before_s"] = seconds_firing(replayed, scenario.symptom)
    if finding is None:
        return row | {"lever": "(the symptom did not fire)"}
    row["advice"] = [one["text"] for one in finding["actions"]]
    for action in finding["actions"]:
        if (changed := applied(action, scenario)) is not None:
            break
    else:
        return row | {"lever": "(none can be applied here)"}
    after = run(*changed, out / f"{scenario.name}-after")
    row |= {"lever": action["text"], "after_s": seconds_firing(_json("replay", str(after)), scenario.symptom)}
    compared = _json("compare", str(before), str(after))
    (out / f"{scenario.name}-compare.json").write_text(json.dumps(compared, indent=1))
    return row | {"numbers": headline(compared)}


def headline(compared: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Base and candidate of the numbers that the verdict of `compare` rests on."""
    measures = compared["candidates"][0]["measures"]
    wanted = re.compile(
        r"ttft_p(50|95)_seconds|itl_p95_seconds|e2e_p95_seconds|generation_tokens_per_second|preemptions.*"
    )
    return {one["name"]: (one["base"], one["value"]) for one in measures if wanted.fullmatch(one["name"])}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=[one.name for one in SCENARIOS])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "advice")
    args = parser.parse_args(words)
    for name in ("VLLM", "MODEL"):
        if name not in os.environ:
            print(f"set {name}: see {Path(__file__).name}", file=sys.stderr)
            return 2
    args.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for scenario in SCENARIOS:
        if not args.only or scenario.name in args.only:
            print(f"{time.strftime('%H:%M:%S')}  {scenario.name} ...", flush=True)
            rows.append(close_the_loop(scenario, args.output))
            print(json.dumps(rows[-1], indent=1), flush=True)
    (args.output / "table.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
