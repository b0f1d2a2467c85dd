"""Condense the list of what every vLLM release exposes into ``tests/data/vllm_names.json``.

    python tests/tools/condense_names.py METRICS_JSON [--check]

METRICS_JSON is the long form, ``{release: {"v0" | "v1" | "server": [{"name", "type", "labels", …}]}}``: one
entry per exposed name, engine and release, taken from the releases' own sources. The short form has

``releases``
    all of them, oldest first: a range below counts along this list;
``names``
    per exposed name its ``type``; its ``labels`` over all releases, without ``model_name`` and ``engine``;
    ranges ``[first, last]`` of the releases that expose it under ``v0``, ``v1`` and ``server``; and under
    ``hidden``, by engine, the ranges where only ``--show-hidden-metrics-for-version`` brings it (they lie
    within the others).

Left out are HELP, notes, sources, buckets, and which release had which of a name's labels. With ``--check``
nothing is written: the committed short form is compared with what the long one gives, and then, expanded
again, with the long one itself.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = Path(__file__).resolve().parents[1] / "data" / "vllm_names.json"
GROUPS = ("v0", "v1", "server")
IMPLIED = {"model_name", "engine"}

Long = dict[str, dict[str, list[dict[str, Any]]]]
Entry = dict[str, Any]


def ranges(releases: list[str], members: set[str]) -> list[list[str]]:
    """The runs of neighbours among the releases, as first and last."""
    runs: list[list[str]] = []
    before = ""
    for release in releases:
        if release in members:
            if runs and runs[-1][1] == before:
                runs[-1][1] = release
            else:
                runs.append([release, release])
        before = release
    return runs


def condense(long: Long) -> dict[str, Entry]:
    """Per name: type, labels and ranges."""
    releases = list(long)
    seen: dict[str, list[tuple[str, str, Entry]]] = {}
    for release, groups in long.items():
        for group, entries in groups.items():
            for entry in entries:
                seen.setdefault(entry["name"], []).append((release, group, entry))

    names: dict[str, Entry] = {}
    for name, found in sorted(seen.items()):
        types = {entry["type"] for _, _, entry in found}
        if len(types) > 1:
            sys.exit(f"{name} changed its type: {sorted(types)}; the short form has no place for that")
        labels = {label for _, _, entry in found for label in entry["labels"]} - IMPLIED
        names[name] = {"type": types.pop(), "labels": sorted(labels)}
        hidden = {}
        for group in GROUPS:
            if exposed := {release for release, where, _ in found if where == group}:
                names[name][group] = ranges(releases, exposed)
            if behind := {
                release for release, where, entry in found if where == group and entry.get("hidden")
            }:
                hidden[group] = ranges(releases, behind)
        if hidden:
            names[name]["hidden"] = hidden
    return names


def render(releases: list[str], names: dict[str, Entry]) -> str:
    """The file: one name a line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items())
    return f'{{"releases": {json.dumps(releases)},\n"names": {{\n{lines}\n}}}}\n'


def expand(releases: list[str], names: dict[str, Entry]) -> Iterator[tuple[str, str, str, str, bool]]:
    """Release, engine, name, type and whether it is hidden: what the short form says, one by one."""

    def members(runs: list[list[str]]) -> Iterator[str]:
        for first, last in runs:
            yield from releases[releases.index(first) : releases.index(last) + 1]

    for name, entry in names.items():
        for group in GROUPS:
            hidden = set(members(entry.get("hidden", {}).get(group, [])))
            for release in members(entry.get(group, [])):
                yield release, group, name, entry["type"], release in hidden


def entries(long: Long) -> Iterator[tuple[str, str, str, str, bool]]:
    """The same of the long form."""
    for release, groups in long.items():
        for group, found in groups.items():
            for entry in found:
                yield release, group, entry["name"], entry["type"], bool(entry.get("hidden"))


def main() -> None:
    """Write or check the short form."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the long form")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    long: Long = json.loads(arguments.source.read_text(encoding="utf-8"))
    text = render(list(long), condense(long))
    if arguments.check:
        committed = NAMES.read_text(encoding="utf-8")
        short = json.loads(committed)
        if committed != text or sorted(expand(short["releases"], short["names"])) != sorted(entries(long)):
            sys.exit(f"{NAMES} is not what {arguments.source} gives")
        print(f"{len(short['names'])} names over {len(short['releases'])} releases: equal")
    else:
        NAMES.parent.mkdir(parents=True, exist_ok=True)
        NAMES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
