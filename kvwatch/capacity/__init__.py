"""Plans the KV cache: how many tokens and requests fit, by the arithmetic of vLLM 0.32.

`plan(request)` is the one call; `advise` compares a running server with it.
"""

from kvwatch.capacity.errors import PlanError
from kvwatch.capacity.kv_plan import Plan
from kvwatch.capacity.plan_request import PlanRequest, plan

__all__ = ["Plan", "PlanError", "PlanRequest", "plan"]
