"""Chooses and orders the levers of a symptom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvwatch.core.judgement.advice.levers import DoNot, Lever, Value
from kvwatch.core.judgement.advice.situation import Situation
from kvwatch.text.numbers import format_number

MAX_ACTIONS = 5


@dataclass(frozen=True, slots=True)
class Action:
    """A lever as it is offered: with its amount, in words. `option` is None outside vLLM."""

    lever: str
    text: str
    option: str | None = None
    value: Value | None = None
    restart: bool = False
    cost: str = ""

    def as_data(self) -> dict[str, Any]:
        return {
            "lever": self.lever,
            "text": self.text,
            "option": self.option,
            "value": self.value,
            "restart": self.restart,
            "cost": self.cost,
        }

    @property
    def sentence(self) -> str:
        """Text and cost, for a list."""
        text = self.text if self.text.endswith(".") else f"{self.text}."
        return f"{text} Cost: {self.cost}." if self.cost else text


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in order, and what not to do (lever, text)."""

    actions: tuple[Action, ...] = ()
    do_not: tuple[tuple[str, str], ...] = ()

    def after(self, first: Action) -> Advice:
        """The same advice after another action."""
        return Advice((first, *self.actions), self.do_not)

    def as_data(self) -> dict[str, Any]:
        return {
            "actions": [action.as_data() for action in self.actions],
            "do_not": [{"lever": lever, "text": text} for lever, text in self.do_not],
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Advice:
        """The advice in plain data of `as_data`."""
        actions = tuple(Action(**action) for action in data["actions"])
        return cls(actions, tuple((one["lever"], one["text"]) for one in data["do_not"]))


NO_ADVICE = Advice()


def choose(levers: Iterable[Lever], do_not: Iterable[DoNot], at: Situation) -> Advice:
    """The levers that apply, at most `MAX_ACTIONS`: first those without a restart, each kind in the order given."""
    found = [(lever, action) for lever in levers if (action := _offer(lever, at)) is not None]
    ids = {lever.id for lever, _ in found}
    offered = [action for lever, action in found if lever.unless not in ids]
    ordered = sorted(offered, key=lambda action: action.restart)
    warned = tuple((one.id, one.text) for one in do_not if one.when(at))
    return Advice(tuple(ordered[:MAX_ACTIONS]), warned)


def _offer(lever: Lever, at: Situation) -> Action | None:
    if at.generation not in lever.generations or (lever.feature and lever.feature not in at.features):
        return None
    if not lever.when(at):
        return None
    value = lever.value(at) if lever.value else None
    if value is None and "{value}" in lever.text:
        return None
    shown = value if isinstance(value, str) or value is None else format_number(value)
    text = lever.text.format(value=shown)
    return Action(
        lever.id,
        f"{text[0].upper()}{text[1:]}",
        lever.option or None,
        value,
        lever.restart,
        lever.cost,
    )
