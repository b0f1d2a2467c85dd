"""Nothing is left of the budget, or the card was not as free as the budget."""

from __future__ import annotations

from math import floor

from kvwatch.logs.advice.wording import BATCH, FEWER_WEIGHTS, UTIL, gib
from kvwatch.logs.log_patterns import LogFacts, known, one

_LITTLE = 0.1
"""A card of which less than this share is free holds something else; no utilisation makes room on it."""
_DESKTOP_GIB = 2.0
"""So little is what a desktop or a driver holds, rather than a server that someone forgot."""
_MOST = 0.5
"""Weights that take more than this share of the budget are what leaves no room."""


def util_below(free: float, total: float) -> float:
    """The largest utilisation, in hundredths and rounded down, whose budget is free."""
    return floor(free / total * 100 + 1e-9) / 100


def no_room(facts: LogFacts) -> str:
    util, weights = one(facts, "util"), one(facts, "weights_gib")
    more = f" ({UTIL} is {util:g})" if util else ""
    taken = f", of which the weights take {gib(weights)}" if weights else ""
    return (
        f"Nothing is left of vLLM's memory budget{more} for the KV cache: weights, activations and what other"
        f" processes hold use all of it{taken}."
    )


def for_no_room(facts: LogFacts) -> list[str]:
    util = one(facts, "util")
    version = str(facts.get("version", ""))
    look = "look at who else holds memory of this GPU (nvidia-smi), and free it or choose another"
    more = f"give vLLM a larger share with {UTIL}"
    if util:
        more += f" ({util:g} now)"
    if not version or version.startswith("0.6.4"):
        more += (
            "; 0.6.4 counts what others hold against vLLM's own budget, so there add their share, or take a later"
            " release"
        )
    found = [more, look] if util is not None and util < 0.3 else [look, more]
    weights, budget = one(facts, "weights_gib"), one(facts, "budget_gib", "desired_gib")
    fewer = FEWER_WEIGHTS
    if weights is None or budget is None:
        fewer = f"if the log says that loading the model took most of that: {FEWER_WEIGHTS}"
    elif weights <= _MOST * budget:
        fewer = ""
    return [
        *found,
        *([fewer] if fewer else []),
        f"make the trial batch smaller ({BATCH})",
        "leave --max-model-len as it is: no length fits into a cache of no blocks",
    ]


def below_budget(facts: LogFacts) -> str:
    said = "Less of the GPU's memory is free at the start than vLLM is to use"
    if both := known(facts, "free_gib", "total_gib"):
        said += f": {gib(both[0])} of {gib(both[1])} are free, so others hold {gib(both[1] - both[0])}"
    wants, util = one(facts, "desired_gib"), one(facts, "util")
    if wants and util:
        said += f"; {UTIL} {util:g} asks for {gib(wants)}"
    return said + "."


def for_below_budget(facts: LogFacts) -> list[str]:
    both = known(facts, "free_gib", "total_gib")
    held = f" {gib(both[1] - both[0])}" if both else " it"
    free = (
        f"find what holds{held} (nvidia-smi, or a worker left over from a start before) and end it, or choose"
        " another GPU"
    )
    util, weights = (util_below(*both) if both and both[1] else None), one(facts, "weights_gib")
    if both and util is not None and (util < _LITTLE or (weights and both[0] <= weights)):
        return [
            f"free the GPU: no {UTIL} helps where {gib(both[0])} are free. {free[0].upper()}{free[1:]}",
            (
                "if several engines are started on one GPU, start them one after the other with shares that add up to"
                " less than 1, or place them on different GPUs"
            ),
        ]
    lower = f"set {UTIL} to {util:.2f} or less" if util is not None else f"set a smaller {UTIL}"
    if both and both[1] - both[0] < _DESKTOP_GIB:
        return [f"{lower}: what others hold (a desktop, say) can't be used", f"or {free}"]
    return [free, f"else {lower}: what others hold can't be used"]


def grew(facts: LogFacts) -> str:
    both = known(facts, "initial_free_gib", "current_free_gib")
    said = "While vLLM measured the memory it uses, another process on the same GPU let memory go"
    return said + (f" ({gib(both[1] - both[0])})" if both else "") + ", so the measurement is void."


def for_grew(_facts: LogFacts) -> list[str]:
    return [
        "start it again: there is more room now than before",
        "let servers that share a GPU start one after the other, and wait until an ended one has let go",
        "or give the cache a fixed size with --kv-cache-memory-bytes: then nothing is measured",
    ]
