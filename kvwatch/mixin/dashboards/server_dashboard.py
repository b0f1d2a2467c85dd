"""One vLLM server: what is wrong, why requests wait, and the numbers behind it."""

from __future__ import annotations

from kvwatch.mixin.dashboards import cache_panels, latency_panels, machine_panels, now_panels, request_panels
from kvwatch.mixin.dashboards.common import SERVER_UID, graph_annotations, job_variable, variables
from kvwatch.mixin.dashboards.elements import Dashboard
from kvwatch.mixin.dashboards.queries import QueryScope
from kvwatch.mixin.render_options import Options


def dashboard(options: Options) -> Dashboard:
    scope = QueryScope(options.selector)
    return Dashboard(
        SERVER_UID,
        "kvwatch / Server",
        "One vLLM server: whether requests wait for the cache, a batch slot or prefill, and why.",
        (
            now_panels.row(scope, options),
            cache_panels.full(scope),
            request_panels.queue(scope),
            latency_panels.row(scope),
            cache_panels.prefix(scope),
            request_panels.lengths(scope),
            request_panels.throughput(scope),
            machine_panels.gpu(scope),
            machine_panels.cost(scope),
        ),
        (job_variable(options), *variables(options)),
        graph_annotations(scope),
    )
