"""The routes. Everything is read-only, and no request can make kvwatch fetch anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.gzip import GZipMiddleware

from kvwatch import __version__
from kvwatch.core.model.snapshot import EngineKey
from kvwatch.sidecar import api_views
from kvwatch.sidecar.clock import Clock
from kvwatch.sidecar.history_view import HistoryQuery, UnknownName, history_view
from kvwatch.sidecar.page import assets
from kvwatch.sidecar.page.document import Pages
from kvwatch.sidecar.page.links import ENGINE_PATH
from kvwatch.sidecar.serving import schemas
from kvwatch.sidecar.serving.metrics_text import Exporter
from kvwatch.sidecar.serving.middleware import Middleware, TokenAuth
from kvwatch.sidecar.store import Store


def build(
    store: Store, registry: CollectorRegistry, clock: Clock, *, auth: TokenAuth | None = None
) -> FastAPI:
    """The application over a store; without `auth` it admits every request."""
    auth = auth or TokenAuth()
    app = FastAPI(
        title="kvwatch",
        version=__version__,
        description=schemas.DESCRIPTION,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        responses={401: {"model": schemas.Failed}} if auth.token else None,
    )
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(Middleware, auth=auth)
    _add_errors(app)
    _add_probes(app)
    _add_metrics(app, store, registry)
    _add_api(app, store, clock)
    _add_page(app, store, clock)
    return app


def _add_page(app: FastAPI, store: Store, clock: Clock) -> None:
    pages = Pages(store, clock)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def landing() -> HTMLResponse:
        return HTMLResponse(await pages.page(), headers={"Content-Security-Policy": assets.POLICY})

    @app.get(ENGINE_PATH, response_class=HTMLResponse, include_in_schema=False)
    async def engine(target: str, model_name: str = "", engine: str = "") -> HTMLResponse:
        try:
            page = await pages.page(EngineKey(target, model_name, engine))
        except KeyError:
            raise HTTPException(404, "no such engine; see / for all engines") from None
        return HTMLResponse(page, headers={"Content-Security-Policy": assets.POLICY})

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(assets.static, name)

    @app.get("/favicon.ico", include_in_schema=False)  # browsers request it for answers that are not HTML
    async def icon() -> Response:
        return _file(assets.static, "icon.svg")

    @app.get("/runbooks/{name}", include_in_schema=False)
    async def runbook(name: str) -> Response:
        return _file(assets.runbook, name)


def _file(find: Callable[[str], tuple[bytes, str]], name: str) -> Response:
    try:
        content, kind = find(name)
    except KeyError:
        raise HTTPException(404) from None
    return Response(content, headers={"Content-Type": kind})


def _add_probes(app: FastAPI) -> None:
    @app.get("/healthz")
    async def healthz() -> schemas.Health:
        """Whether kvwatch is alive."""
        return schemas.Health(status="ok")

    @app.get("/readyz")
    async def readyz() -> schemas.Health:
        """Whether kvwatch serves. Independent of vLLM: a sidecar must not make its pod unready."""
        return schemas.Health(status="ok")


def _add_metrics(app: FastAPI, store: Store, registry: CollectorRegistry) -> None:
    exporter = Exporter(store, registry)

    async def metrics(request: Request) -> Response:
        """kvwatch's metrics in the text format or OpenMetrics, by the `Accept` header."""
        body, content_type = await exporter.page(",".join(request.headers.getlist("accept")))
        return Response(body, media_type=None, headers={"Content-Type": content_type})

    app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})(metrics)
    app.get("/metrics/", include_in_schema=False)(metrics)


def _add_api(app: FastAPI, store: Store, clock: Clock) -> None:
    @app.get("/api/v1/state", response_model=schemas.StateAnswer)
    async def state() -> dict[str, Any]:
        """Everything kvwatch knows now, by target and engine."""
        return api_views.state_view(store, clock)

    @app.get("/api/v1/findings", response_model=schemas.FindingsAnswer)
    async def findings() -> dict[str, Any]:
        """The firing symptoms, with evidence, causes and actions."""
        return api_views.findings_view(store, clock)

    @app.get("/api/v1/events", response_model=schemas.EventsAnswer, response_model_by_alias=True)
    async def events() -> dict[str, Any]:
        """Restarts, engines that appeared or vanished, and every transition of a symptom."""
        return api_views.events_view(store, clock)

    @app.get(
        "/api/v1/history", response_model=schemas.HistoryAnswer, responses={404: {"model": schemas.Failed}}
    )
    async def history(query: Annotated[HistoryQuery, Query()]) -> dict[str, Any]:
        """The samples of the last seconds at full resolution, of all engines or the selected ones.

        An unknown name is answered with 404 and the known names.
        """
        try:
            return history_view(store, clock, query)
        except UnknownName as unknown:
            raise HTTPException(404, str(unknown)) from None

    @app.get("/debug/last-failures", response_model=schemas.FailuresAnswer)
    async def last_failures() -> dict[str, Any]:
        """The latest failed scrapes, with the beginning of the answer, without secrets."""
        return api_views.failures_view(store)


def _add_errors(app: FastAPI) -> None:
    """Every error is JSON with one message."""

    def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers=headers)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> JSONResponse:
        if error.status_code == 405:
            return answer(405, "kvwatch is read-only: use GET", error.headers)
        if error.status_code == 404 and error.detail == "Not Found":
            return answer(404, f"nothing is at {request.scope['path'][:200]}; see / for all pages")
        return answer(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors()))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return answer(500, "kvwatch failed at this request; see its log")
