"""PromQL of the panels, with the matchers of their dashboard's variables.

A ratio is one of sums. Without traffic it is 0/0, so NaN, which panels show as "No traffic". A metric that vLLM does
not expose gives no series, which panels show as "Not exposed".
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.core.export.catalogue import PREFIX
from kvwatch.core.history.regimes import Regime
from kvwatch.mixin.promql import family, select

RATE, RANGE = "$__rate_interval", "$__range"

SERVER = "job, instance, target"
"""Labels of a server. `instance` too, because sidecars may give their targets the same name."""
MODEL = f"{SERVER}, model_name"
ENGINE = f"{MODEL}, engine"

_SCRAPED = f'regime!~"{Regime.DOWN}|{Regime.UNKNOWN}"'


@dataclass(frozen=True, slots=True)
class QueryScope:
    """Selects the series that the variables choose.

    `selector` has further matchers. `suffix` is that of the variables' names. Without `engines` there is no variable
    `engine`.
    """

    selector: str = ""
    suffix: str = ""
    engines: bool = True

    def __call__(self, name: str, *matchers: str) -> str:
        """A selector of an exported metric, with a matcher for each of its labels that has a variable."""
        return select(name, *self._matchers(family(name).labels), *matchers, self.selector)

    def or_server(self, name: str, *matchers: str) -> str:
        """Also matches series of the whole server, which have no model and no engine."""
        chosen = [
            one.removesuffix('"') + '|"' if one.startswith(("model_name", "engine")) else one
            for one in self._matchers(family(name).labels)
        ]
        return select(name, *chosen, *matchers, self.selector)

    def process(self, name: str) -> str:
        """A metric of the kvwatch process."""
        inside = ",".join(filter(None, (*self._matchers(()), self.selector)))
        return f"{PREFIX}{name}{{{inside}}}"

    def rate(self, name: str, *matchers: str, window: str = RATE) -> str:
        return f"rate({self(name, *matchers)}[{window}])"

    def increase(self, name: str, *matchers: str, window: str = RATE) -> str:
        return f"increase({self(name, *matchers)}[{window}])"

    def rate_ratio(self, above: str, below: str, by: str = "", *, window: str = RATE) -> str:
        """The rate of one counter divided by that of another."""
        return ratio(self.rate(above, window=window), self.rate(below, window=window), by)

    def hit_ratio(self, by: str = "", *, window: str = RATE) -> str:
        """Prefix cache hit ratio: tokens found / tokens looked up."""
        return self.rate_ratio(
            "prefix_cache_hit_tokens_total", "prefix_cache_queried_tokens_total", by, window=window
        )

    def mean(self, histogram: str, *, window: str = RATE) -> str:
        return self.rate_ratio(f"{histogram}_sum", f"{histogram}_count", window=window)

    def quantile(self, q: float, histogram: str, *, by: str = "", window: str = RATE) -> str:
        """Buckets are added up by `by`, so only series with the same buckets may share its labels."""
        labels = f"{by}, le" if by else "le"
        buckets = self.rate(f"{histogram}_bucket", window=window)
        return f"histogram_quantile({q:g}, sum by ({labels}) ({buckets}))"

    def _matchers(self, labels: tuple[str, ...]) -> list[str]:
        names = ["target", "model_name", *(["engine"] if self.engines else [])]
        chosen = ["instance", *(name for name in names if name in labels)]
        return ['job=~"$job"', *(f'{name}=~"${name}{self.suffix}"' for name in chosen)]


def total(what: str, by: str = "") -> str:
    return f"sum by ({by}) ({what})" if by else f"sum({what})"


def highest(what: str, by: str = "") -> str:
    return f"max by ({by}) ({what})" if by else f"max({what})"


def ratio(above: str, below: str, by: str = "") -> str:
    """The ratio of two sums."""
    return f"{total(above, by)}\n/\n{total(below, by)}"


def regime_share(scope: QueryScope, *, model: bool = False) -> str:
    """The share of the watched time in each regime, over all chosen engines.

    With `model`, a server that never answered is left out, because nobody knows which models it serves.
    """
    name = "regime_seconds_total"
    spent = f"rate({scope(name) if model else scope.or_server(name)}[{RATE}])"
    return f"{total(spent, 'regime')}\n/ on () group_left ()\n{total(spent)}"


def usage_share(scope: QueryScope) -> str:
    """The share of the time with successful scrapes in which KV cache usage was at or above each mark."""
    above = scope.rate("kv_cache_usage_above_seconds_total")
    scraped = scope.rate("regime_seconds_total", _SCRAPED)
    return f"{total(above, 'threshold')}\n/ on () group_left ()\n{total(scraped)}"


# -- symptoms ----------------------------------------------------------------------------------------------------

CAUSE, EFFECT = "1", "2"
"""Values of the label `why` of `firing`: a cause, or explained by another symptom."""

_SYMPTOM = f"{ENGINE}, symptom"


def firing(scope: QueryScope) -> str:
    """Firing symptoms, as the alerts see them: seconds since they began, with severity, title and role.

    Few of many fire, so they are selected first, and each metric is queried once. `count_values` turns a number into
    a label: 1 for firing, 2 if also explained. The label is called `why` because it must be last in the alphabet: in
    range queries Prometheus 2.42 drops labels that come after it. The label `page` names the runbook: the symptom's
    words without underscores.
    """
    firing, explained = scope.or_server("symptom_firing"), scope.or_server("symptom_explained")
    role = f'count_values by ({_SYMPTOM}) ("why",\n({firing} == 1) + {explained})'
    since = f"(time() - {scope.or_server('symptom_since_timestamp_seconds')})"
    timed = f"{role}\n* on ({_SYMPTOM}) group_left () {since}"
    titled = f"{timed}\n* on ({SERVER}, symptom) group_left (severity, title) {scope('symptom_info')}"
    words = "_?([a-z0-9]*)" * 6
    page = "".join(f"${number}" for number in range(1, 7))
    return f'label_replace({titled}, "page", "{page}", "symptom", "{words}")'


def evidence(scope: QueryScope) -> str:
    """The evidence of each symptom, by name. Symptoms that another explains are left out."""
    values = f"max by ({_SYMPTOM}, evidence, text) ({scope.or_server('symptom_evidence')})"
    return f"{values}\nunless on ({_SYMPTOM}) ({scope.or_server('symptom_explained')} == 1)"
