"""Expressions of the dashboards' panels, with the matchers of their variables.

A ratio is one of sums, and is left undefined where there was nothing to divide by: 0/0 is NaN, which panels show as
"No traffic", while a series that is not there stays away and shows as "not exposed".
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.core.export.catalogue import PREFIX
from kvwatch.core.history.regimes import Regime
from kvwatch.mixin.promql import family, select

RATE, RANGE = "$__rate_interval", "$__range"
#: A server, and a model on it. `instance` tells apart sidecars that call their server by the same name.
SERVER = "job, instance, target"
MODEL = f"{SERVER}, model_name"
ENGINE = f"{MODEL}, engine"
_WATCHED = f'regime!~"{Regime.DOWN}|{Regime.UNKNOWN}"'


@dataclass(frozen=True, slots=True)
class QueryScope:
    """Selects what the variables choose. `suffix` is that of the variables' names, `also` matchers besides."""

    also: str = ""
    suffix: str = ""
    engines: bool = True

    def __call__(self, name: str, *matchers: str) -> str:
        """A selector of an exported family, of what it is a family of: servers, models or engines."""
        labels = family(name).labels
        return select(name, *self._matchers(labels), *matchers, self.also)

    def loose(self, name: str, *matchers: str) -> str:
        """One that also has the series of the whole server, which name no model and no engine."""
        chosen = [
            one.removesuffix('"') + '|"' if one.startswith(("model_name", "engine")) else one
            for one in self._matchers(family(name).labels)
        ]
        return select(name, *chosen, *matchers, self.also)

    def own(self, name: str) -> str:
        """A metric of the process of kvwatch itself."""
        inside = ",".join(filter(None, (*self._matchers(()), self.also)))
        return f"{PREFIX}{name}{{{inside}}}"

    def rate(self, name: str, *matchers: str, window: str = RATE) -> str:
        return f"rate({self(name, *matchers)}[{window}])"

    def increase(self, name: str, *matchers: str, window: str = RATE) -> str:
        return f"increase({self(name, *matchers)}[{window}])"

    def _matchers(self, labels: tuple[str, ...]) -> list[str]:
        chosen = ["instance", "target", "model_name"] + (["engine"] if self.engines else [])
        found = ['job=~"$job"', f'instance=~"$instance{self.suffix}"']
        found += [f'{name}=~"${name}{self.suffix}"' for name in chosen if name in labels]
        return found


def total(what: str, by: str = "") -> str:
    return f"sum by ({by}) ({what})" if by else f"sum({what})"


def highest(what: str, by: str = "") -> str:
    return f"max by ({by}) ({what})" if by else f"max({what})"


def ratio(above: str, below: str, by: str = "") -> str:
    """Of the sums of both."""
    return f"{total(above, by)}\n/\n{total(below, by)}"


def quantile(q: float, scope: QueryScope, name: str, *, by: str = MODEL, window: str = RATE) -> str:
    """Of a histogram, merged only over what has the same buckets: the engines of one server."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({scope.rate(f'{name}_bucket', window=window)}))"


def mean(scope: QueryScope, name: str, *, window: str = RATE) -> str:
    return ratio(scope.rate(f"{name}_sum", window=window), scope.rate(f"{name}_count", window=window))


def regime_share(scope: QueryScope, *, model: bool = False) -> str:
    """The share of the watched time in each regime, over all engines that are chosen.

    Of one `model`, what was of no engine (a server that never answered) is left out: nobody knows what it serves.
    """
    name = "regime_seconds_total"
    spent = f"rate({scope(name) if model else scope.loose(name)}[{RATE}])"
    return f"{total(spent, 'regime')}\n/ on () group_left ()\n{total(spent)}"


def usage_share(scope: QueryScope) -> str:
    """The share of the time in which vLLM answered that usage was at or above each mark."""
    above = scope.rate("kv_cache_usage_above_seconds_total")
    watched = scope.rate("regime_seconds_total", _WATCHED)
    return f"{total(above, 'threshold')}\n/ on () group_left ()\n{total(watched)}"


_KEY = f"{ENGINE}, symptom"
#: What the label `why` of `firing` says: 1 for a cause, 2 for what another accounts for.
CAUSE, EFFECT = "1", "2"


def firing(scope: QueryScope) -> str:
    """Symptoms that fire, as alerts have it: seconds since they do, severity, title, whether another explains them.

    What fires is few of many, so it is chosen first and each family is asked for once. `count_values` makes a label
    of a number: 1 for firing, and 1 more if explained. Its name is the last in the alphabet, since in queries over a
    range Prometheus 2.42 drops labels that come after it. The label `page` names the runbook as alerts do: the
    symptom's words without the underscores.
    """
    firing, explained = scope.loose("symptom_firing"), scope.loose("symptom_explained")
    role = f'count_values by ({_KEY}) ("why",\n({firing} == 1) + {explained})'
    since = f"(time() - {scope.loose('symptom_since_timestamp_seconds')})"
    told = f"{role}\n* on ({_KEY}) group_left () {since}"
    named = f"{told}\n* on ({SERVER}, symptom) group_left (severity, title) {scope('symptom_info')}"
    words = "_?([a-z0-9]*)" * 6
    page = "".join(f"${number}" for number in range(1, 7))
    return f'label_replace({named}, "page", "{page}", "symptom", "{words}")'


def evidence(scope: QueryScope) -> str:
    """The numbers by which causes were judged, by name; those of what another accounts for are left out."""
    judged = f"max by ({_KEY}, evidence, text) ({scope.loose('symptom_evidence')})"
    return f"{judged}\nunless on ({_KEY}) ({scope.loose('symptom_explained')} == 1)"
