"""A server with the `/metrics` routes of vLLM, run as a process: ``python -m tests.support.replica.server``.

The routes are built of the same two parts, in the same order and with the same settings as in
``vllm/entrypoints/serve/instrumentator/metrics.py`` (0.32): the FastAPI instrumentator answers ``/metrics`` and
always with everything; the ASGI app of `prometheus_client`, mounted behind it, answers what else begins so, such as
``/metrics/?name[]=…``, and there only what is asked for. With several API server processes
(``PROMETHEUS_MULTIPROC_DIR``) each writes its numbers to files, any of them answers, and for a request with names
with nothing. What is served is a recorded page as live objects (`tests.support.replica.families`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, make_asgi_app, multiprocess
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.responses import Response as StarletteResponse
from starlette.routing import Mount

from tests.support.replica.families import Engines

_UNCOUNTED = ["/metrics", "/health", "/load", "/ping", "/version", "/server_info"]
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class PrometheusResponse(Response):
    """As vLLM declares it."""

    media_type = CONTENT_TYPE_LATEST


def registry() -> CollectorRegistry:
    """The registry that vLLM serves: of all processes where there are several."""
    if _MULTIPROCESS not in os.environ:
        return REGISTRY
    collected = CollectorRegistry()
    multiprocess.MultiProcessCollector(collected)  # type: ignore[no-untyped-call]
    return collected


def application() -> FastAPI:
    """The routes of vLLM that kvwatch asks."""
    app = FastAPI()

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": "0.32.0"}

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"data": [{"id": "tiny-llama", "max_model_len": 2048}]}

    served = registry()
    Instrumentator(excluded_handlers=_UNCOUNTED, registry=served).add().instrument(app).expose(
        app, response_class=PrometheusResponse
    )
    mounted = Mount("/metrics", make_asgi_app(registry=served))
    mounted.path_regex = re.compile("^/metrics(?P<path>.*)$")
    app.routes.append(mounted)
    return app


class Slowness:
    """How long every answer waits, as behind a busy event loop; ``PUT /slowness/0.05`` sets it, in seconds."""

    def __init__(self, app: FastAPI) -> None:
        self.seconds = 0.0

        @app.put("/slowness/{seconds}")
        async def set_to(seconds: float) -> None:
            self.seconds = seconds

        @app.middleware("http")
        async def wait(
            request: Request, call_next: Callable[[Request], Awaitable[StarletteResponse]]
        ) -> StarletteResponse:
            await asyncio.sleep(self.seconds)
            return await call_next(request)


async def _serve(sock: socket.socket, app: FastAPI, engines: Engines) -> None:
    async def move() -> None:
        while True:
            await asyncio.sleep(1.0)
            engines.move()

    moving = asyncio.create_task(move())
    as_vllm = uvicorn.Config(app, log_level="warning", access_log=False, http="httptools", loop="none")
    await uvicorn.Server(as_vllm).serve(sockets=[sock])
    moving.cancel()


def main() -> int:
    """Serves until it is told to end; says its URL in a line once the port is open."""
    options = argparse.ArgumentParser(description="A server with the /metrics routes of vLLM.")
    options.add_argument("--engines", type=int, default=1)
    options.add_argument(
        "--processes", type=int, default=1, help=f"API server processes; needs {_MULTIPROCESS}"
    )
    options.add_argument("--slow", action="store_true", help="answers can be delayed")
    chosen = options.parse_args()
    if chosen.processes > 1 and _MULTIPROCESS not in os.environ:
        options.error(f"several processes need {_MULTIPROCESS} to be set")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as sock:
        print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
        children: list[int] = []
        while len(children) < chosen.processes - 1:
            child = os.fork()
            if child == 0:
                children.clear()
                break
            children.append(child)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # raised again when the server has ended
        try:
            engines, app = Engines(chosen.engines, share=1.0 / chosen.processes), application()
            if chosen.slow:
                Slowness(app)
            uvloop.run(_serve(sock, app, engines))
        except KeyboardInterrupt:
            return 0
        finally:
            for child in children:
                os.kill(child, signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(main())
