"""Registers the stories of symptoms, and builds the servers that many of them use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvwatch.core.judgement.lifecycle import Stage
from kvwatch.core.judgement.pipeline import next_pace
from kvwatch.core.judgement.policy import Policy
from tests.support.pages import Server
from tests.support.watch import Watch, replayed

Story = Callable[[], Watch]


@dataclass(frozen=True)
class Case:
    """A story of a symptom. `ends` is where the symptom is in the end, if that matters."""

    symptom: str
    story: Story
    ends: Stage | None = None


HITS: list[Case] = []
NEAR_MISSES: list[Case] = []
MISSING: list[Case] = []


def register(kind: list[Case], symptom: str, ends: Stage | None = None) -> Callable[[Story], Story]:
    """Registers a story."""

    def add(story: Story) -> Story:
        kind.append(Case(symptom, story, ends))
        return story

    return add


def recorded(kind: list[Case], symptom: str, *names: str, ends: Stage | None = None) -> None:
    """Registers recordings as stories."""
    kind.extend(Case(symptom, partial(replayed, name), ends) for name in names)


def working(
    seconds: int,
    each: Callable[[Server, int], None],
    server: Server | None = None,
    policy: Policy | None = None,
) -> Watch:
    """A server that goes on generating, changed by `each` every second."""
    watch, server = Watch(policy or Policy()), server or Server()
    server.finish(1)
    for i in range(seconds):
        server.generation_tokens += 50
        each(server, i)
        watch.see(server)
    return watch


def hungry(server: Server, usage: float = 0.99, running: int = 10, waiting: int = 20) -> None:
    server.usage, server.running, server.waiting = usage, running, waiting


def serving(
    seconds: int, prompt: float, hit: float, server: Server | None = None, each_second: int = 1
) -> Watch:
    """A server that finishes requests of some length and hit ratio."""
    watch, server = Watch(), server or Server(usage=0.3, running=2)
    watch.see(server)
    for _ in range(seconds):
        server.finish(each_second, prompt=prompt, hit=hit)
        watch.see(server, pace=next_pace(watch.state, watch.now + 1))
    return watch


def configured(**labels: str) -> Server:
    server = Server(usage=0.3, running=2)
    server.config |= labels
    return server
