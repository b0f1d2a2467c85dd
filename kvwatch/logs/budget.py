"""Where the memory of the GPU goes, as a waterfall: total x utilisation - weights - non-torch - activations - CUDA
graphs = KV cache. Only steps that the log tells, or that follow from two that it tells."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.logs.log_patterns import LogFacts, known, one


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """One step, in GiB: an amount (`total`, `budget`, `KV cache`) or, where `takes`, what is taken from it."""

    what: str
    gib: float
    takes: bool = False


def waterfall(facts: LogFacts) -> tuple[BudgetStep, ...]:
    """The steps that are known; none if the log does not tell a budget, or nothing but it."""
    budget = one(facts, "budget_gib", "desired_gib")
    card = known(facts, "total_gib", "util")
    if budget is None and card:
        budget = card[0] * card[1]
    pool = one(facts, "available_gib", "available_kv_gib")
    if budget is None:
        return ()
    steps = []
    if card:
        steps.append(BudgetStep("memory in all", card[0]))
        steps.append(BudgetStep(f"x utilisation {card[1]:g}: budget", round(budget, 2)))
    else:
        steps.append(BudgetStep("budget", round(budget, 2)))
    taken = [
        BudgetStep(what, size, takes=True) for what, name in _TAKEN if (size := one(facts, name)) is not None
    ]
    if one(facts, "peak_torch_gib") is not None:
        taken = [step for step in taken if step.what in {_PEAK, _OTHER}]
    if not taken and pool is None:
        return ()
    if pool is not None:
        rest = round(budget - sum(step.gib for step in taken) - pool, 2)
        if taken and rest >= _WORTH:
            taken.append(BudgetStep("what the log does not tell apart", rest, takes=True))
    left = () if pool is None else (BudgetStep("KV cache", pool),)
    return (*steps, *taken, *left)


_PEAK, _OTHER = "weights and activations at their peak", "outside of PyTorch"
#: What takes from the budget, by fact.
_TAKEN = (
    ("weights", "weights_gib"),
    ("weights and what is outside of PyTorch", "consumed_gib"),
    (_PEAK, "peak_torch_gib"),
    (_OTHER, "non_torch_gib"),
    ("activations at their peak", "activation_gib"),
    ("CUDA graphs", "estimated_graphs_gib"),
)
_WORTH = 0.05
"""GiB below which a difference is rounding."""
