"""One vLLM server: what is wrong, why requests wait, and the numbers behind it."""

from __future__ import annotations

from kvwatch.mixin.dashboards import cache, latency, machine, now, requests
from kvwatch.mixin.dashboards.common import SERVER_UID, job, marks, variables
from kvwatch.mixin.dashboards.model import Dashboard
from kvwatch.mixin.dashboards.queries import Scope
from kvwatch.mixin.options import Options


def dashboard(options: Options) -> Dashboard:
    scope = Scope(options.selector)
    return Dashboard(
        SERVER_UID,
        "kvwatch / Server",
        "Why do requests wait on this vLLM: for the cache, for a slot, for prefill, or not at all?",
        (
            now.row(scope, options),
            cache.full(scope),
            requests.queue(scope),
            latency.row(scope),
            cache.prefix(scope),
            requests.lengths(scope),
            requests.throughput(scope),
            machine.gpu(scope),
            machine.cost(scope),
        ),
        (job(options), *variables(options)),
        marks(scope),
    )
