"""What `check` and `record` have in common, against real HTTP servers."""

import asyncio
import time
from collections.abc import Callable

import pytest

from kvwatch.commands import live
from kvwatch.core.model.outcome import Outcome, Scrape
from kvwatch.core.model.server_info import ServerInfo
from kvwatch.settings import Settings, TargetSettings
from tests.support.loopback import Asked, Handler, VllmLike, pages, serving

HEALTHY = "0.32.0--b-healthy.jsonl.gz"


def seen(handler: Handler, enough: Callable[[list[Outcome]], bool]) -> list[Outcome]:
    """Scrapes until there are enough."""

    async def run() -> list[Outcome]:
        found: list[Outcome] = []
        async with serving(handler) as server:
            target = TargetSettings(name="t", url=server.url)
            settings = Settings(targets=[target], interval_s=0.05, gpu="off")
            async with asyncio.timeout(20):
                async for _, outcome in live.scrapes(target, settings, seconds=None):
                    found.append(outcome)
                    if enough(found):
                        break
        return found

    return asyncio.run(run())


def facts(found: list[Outcome]) -> list[ServerInfo]:
    return [one.facts for one in found if isinstance(one, Scrape) and one.facts is not None]


def test_the_other_endpoints_are_asked_once_and_hold_up_nothing() -> None:
    """What they say comes with the page after it is known, and only with that."""
    found = seen(VllmLike(pages(HEALTHY), step=1), lambda found: len(found) >= 8 and bool(facts(found)))
    assert facts(found) == [ServerInfo("0.32.0", {"tiny-llama": 2048})]


@pytest.mark.parametrize(
    ("hang", "known"),
    [("/version", ServerInfo(max_model_len={"tiny-llama": 2048})), ("/v1/models", ServerInfo("0.32.0"))],
)
def test_endpoints_that_hang_hold_up_no_scrape(hang: str, known: ServerInfo) -> None:
    """Ten scrapes take no longer than they do, the end waits for nothing, and what the other one says is known."""
    vllm = VllmLike(pages(HEALTHY))

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == hang:
            await asyncio.Event().wait()
        await vllm(asked, writer)

    began = time.monotonic()
    found = seen(handler, lambda found: len(found) >= 10)
    assert facts(found) == [known]
    assert time.monotonic() - began < 1.9  # what an endpoint is given at most is 2 s
