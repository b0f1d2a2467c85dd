"""Make the recordings of the tests, and the one that ships with the package, from captures of real servers.

    python tests/tools/trim_captures.py SOURCE

SOURCE holds ``vllm-VERSION/SCENARIO.jsonl.gz`` with ``SCENARIO.meta.json`` beside it, one poll a second (see
``tests/captures/README.md``). Written are, from the same bytes always the same bytes:

``tests/captures/vllm-VERSION/SCENARIO.jsonl.gz``
    A few whole pages of every capture, for reading real pages: the first one, the first after a restart, the
    one with the most requests in the server, the middle one of those with any, the last good one and, where
    the server was gone by then, the last poll.

``tests/captures/vllm-VERSION/openmetrics.jsonl.gz``
    The OpenMetrics answer of a real server as a recording of one sample, with its ``content_type``.

``tests/replay/recordings/VERSION--SCENARIO.jsonl.gz``
    Whole time-lines, the pages cut down to the families that kvwatch reads, for replays.

``kvwatch/data/demo.jsonl.gz``
    The incident of ``kvwatch demo``.

``tests/captures/scenarios.json``
    What was really going on in each capture, times in seconds from its first poll; the table in the
    README beside it says the same.
"""

import argparse
import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
RECORDINGS = ROOT / "tests" / "replay" / "recordings"
DEMO = ROOT / "kvwatch" / "data" / "demo.jsonl.gz"

DEMONSTRATED = ("0.32.0", "c-kv-saturation", 15.0)  # from 10 s before the saturation
OPENMETRICS = "0.32.0"
TABLE = "<!-- the table below is written by tests/tools/trim_captures.py -->"

# Families of a vLLM page that kvwatch has no use for, by what follows "vllm:"; they are more than half of it.
UNUSED = re.compile(
    r"request_params_n|request_params_max_tokens|request_max_num_generation_tokens|request_inference_time_seconds"
    r"|request_time_per_output_token_seconds|request_num_preemptions|mm_cache_.*|estimated_.*|kv_block_.*|.*_created"
)
# Of the captures that say ``lean`` beside them (long ones, two engines) also these: what kvwatch does not read,
# and the buckets of histograms whose sum and count are enough for every symptom. The HELP lines go too.
LEAN = re.compile(
    r"vllm:(?:request_prefill_kv_computed_tokens|prompt_tokens_cached)_.*"
    r"|vllm:(?:iteration_tokens_total|(?:request_(?:queue|prefill|decode)_time|e2e_request_latency)_seconds)_bucket"
)
LOAD = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)
STARTED = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)
HEADING = re.compile(r"# (?:HELP|TYPE) (\S+) ")

Sample = dict[str, Any]


def read(path: Path) -> list[Sample]:
    """The samples of a recording."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(path: Path, samples: Iterable[Sample]) -> int:
    """Write a recording, the same bytes for the same samples; how many bytes it has."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as packed:
        for sample in samples:
            packed.write(json.dumps(sample, ensure_ascii=False).encode() + b"\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    return len(buffer.getvalue())


def is_read(family: str) -> bool:
    """Whether kvwatch has a use for a family."""
    prefix, colon, name = family.partition(":")
    if not colon:
        return family in {"process_start_time_seconds", "http_requests_total"}
    return prefix == "vllm" and not UNUSED.fullmatch(name)


def strip(body: str) -> str:
    """A page without the families that kvwatch does not read."""

    def kept() -> Iterator[str]:
        keep = False
        for line in body.splitlines(keepends=True):
            if heading := HEADING.match(line):
                keep = is_read(heading[1])
            if keep:
                yield line

    return "".join(kept())


def thin(body: str) -> str:
    """A stripped page without what the captures that say ``lean`` leave out as well."""

    def kept(line: str) -> bool:
        if heading := HEADING.match(line):
            return line.startswith("# TYPE") and not LEAN.fullmatch(f"{heading[1]}_")
        return not LEAN.fullmatch(line.partition("{")[0].partition(" ")[0])

    return "".join(line for line in body.splitlines(keepends=True) if kept(line))


def stripped(samples: Iterable[Sample], lean: bool = False) -> Iterator[Sample]:
    """The same time-line with stripped pages."""
    for sample in samples:
        if "body" not in sample:
            yield sample
            continue
        body = strip(sample["body"])
        yield sample | {"body": thin(body) if lean else body}


def select(samples: list[Sample]) -> list[Sample]:
    """The few polls that are kept whole."""
    good = [at for at, sample in enumerate(samples) if sample["status"] == 200]

    def load(at: int) -> float:
        return sum(float(value) for value in LOAD.findall(samples[at]["body"]))

    def restarted() -> Iterator[int]:
        seen: set[str] = set()
        for at in good:
            if (found := STARTED.search(samples[at]["body"])) and found[1] not in seen:
                seen.add(found[1])
                yield at

    loaded = [at for at in good if load(at)] or good
    kept = {good[0], *restarted(), max(good, key=load), loaded[len(loaded) // 2], good[-1], len(samples) - 1}
    return [samples[at] for at in sorted(kept)]


def openmetrics(folder: Path) -> Sample:
    """The OpenMetrics answer of a server, with its content type out of the log of the same questions."""
    http = (folder / "http.txt").read_text(encoding="utf-8")
    asked = r"== GET /metrics/ +\(Accept: application/openmetrics"
    answered = re.search(asked + r".*?content-type: ([^\n]+)", http, re.DOTALL)
    if not answered:
        sys.exit(f"no OpenMetrics answer in {folder / 'http.txt'}")
    body = (folder / "openmetrics.txt").read_text(encoding="utf-8")
    return {"t": 0.0, "status": 200, "content_type": answered[1], "body": body}


def facts(meta: dict[str, Any], samples: list[Sample]) -> dict[str, Any]:
    """What was really going on, times in seconds from the first poll."""
    start: float = samples[0]["t"]

    def since(moment: float) -> float:
        return max(0.0, round(moment - start, 1))

    def timed(phase: dict[str, Any]) -> dict[str, Any]:
        known = phase | {
            key: since(phase[key]) for key in ("t0", "t1", "down_at", "started_at") if key in phase
        }
        if "signals" in phase:
            known["signals"] = [[since(moment), name] for moment, name in phase["signals"]]
        return known

    return {
        "flags": meta["flags"],
        "env": meta["env"],
        "polls": len(samples),
        "unreachable": sum(sample["status"] == 0 for sample in samples),
        "phases": [timed(phase) for phase in meta["phases"]],
    }


def table(known: dict[str, Any]) -> Iterator[str]:
    """The rows of the README's table: flags and phases of every capture."""
    yield "| capture | flags | what happened, by seconds |"
    yield "|---|---|---|"
    for name, fact in sorted(known.items()):
        environment = [f"{key}={value}" for key, value in fact["env"].items()]
        phases = "; ".join(
            f"{phase['t0']:.0f}-{phase['t1']:.0f} {describe(phase)}" for phase in fact["phases"]
        )
        gone = f"; {fact['unreachable']} of {fact['polls']} polls unanswered" if fact["unreachable"] else ""
        yield f"| `{name}` | `{' '.join(environment + fact['flags'])}` | {phases}{gone} |"


def asked(load: dict[str, Any]) -> str:
    """One load in words."""
    paced = f"{load['rate']} requests/s" if "rate" in load else f"{load['concurrency']} clients"
    if "max_requests" in load and load["max_requests"] == 1:
        paced = "one request"
    prompt = f"{load['tail'][0]}-{load['tail'][1]} own"
    if "shared" in load:
        prompt = f"{load['shared']} shared + {prompt}"
    if "head" in load:
        prompt = f"{load['head']} varying first + {prompt}"
    if "sessions" in load:
        first, last = load["own_prefix"]
        prompt = f"{first}-{last} of one of {load['sessions']} sessions in turn + {prompt}"
    text = f"{paced}, {prompt} prompt tokens, {load['out'][0]}-{load['out'][1]} output tokens"
    if "models" in load:
        text += f", for {' '.join(load['models'])}"
    for name, value in load.get("headers", {}).items():
        text += f", {name}: {value}"
    if "extra" in load:
        text += f", with {json.dumps(load['extra'])}"
    return text


def describe(phase: dict[str, Any]) -> str:
    """One phase in words: its name and its loads."""
    text = str(phase["name"])
    if loads := [*filter(None, [phase.get("load")]), *(beside["load"] for beside in phase.get("beside", []))]:
        text += f" ({'; beside it '.join(map(asked, loads))})"
    for moment, signal in phase.get("signals", []):
        text += f", {signal} to the {phase.get('to', 'engine')} at {moment:.0f}"
    if "down_at" in phase:
        text += f" (ended at {phase['down_at']:.0f}, started anew at {phase['started_at']:.0f})"
    return text


def main() -> None:
    """Make them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the folder of the full captures")
    source: Path = parser.parse_args().source

    known: dict[str, Any] = {}
    written = 0
    for path in sorted(source.glob("vllm-*/*.jsonl.gz")):
        version, scenario = path.parent.name.removeprefix("vllm-"), path.name.removesuffix(".jsonl.gz")
        samples = read(path)
        meta = json.loads(path.with_name(f"{scenario}.meta.json").read_text(encoding="utf-8"))
        known[f"{version}/{scenario}"] = facts(meta, samples)
        timeline = stripped(samples, lean=meta.get("lean", False))
        written += write(CAPTURES / path.parent.name / path.name, select(samples))
        written += write(RECORDINGS / f"{version}--{path.name}", timeline)
        if (version, scenario) == DEMONSTRATED[:2]:
            start = samples[0]["t"] + DEMONSTRATED[2]
            written += write(DEMO, stripped(sample for sample in samples if sample["t"] >= start))
    if not known:
        sys.exit(f"no vllm-VERSION/SCENARIO.jsonl.gz in {source}")
    answer = openmetrics(source / f"vllm-{OPENMETRICS}")
    written += write(CAPTURES / f"vllm-{OPENMETRICS}" / "openmetrics.jsonl.gz", [answer])
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    (CAPTURES / "scenarios.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    readme = CAPTURES / "README.md"
    text, _, _ = readme.read_text(encoding="utf-8").partition(TABLE)
    readme.write_text("\n".join([text + TABLE, "", *table(known), ""]), encoding="utf-8")
    print(f"{len(known)} captures read, {written / 1e6:.2f} MB written")


if __name__ == "__main__":
    main()
