"""The Dockerfile, read as its stages with their instructions."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field


@dataclass
class Stage:
    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for found, rest in self.steps if found == instruction]

    def one(self, instruction: str) -> str:
        (rest,) = self.all(instruction)
        return rest

    def environment(self) -> dict[str, str]:
        """What its ENV instructions set, as they stand."""
        return dict(assignment.split("=", 1) for rest in self.all("ENV") for assignment in shlex.split(rest))


def parse(text: str) -> list[Stage]:
    """The stages with their instructions, continued lines joined and comments gone."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(Stage(image, name))
        elif stages:
            stages[-1].steps.append((instruction, rest))
    return stages
