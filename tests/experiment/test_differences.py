"""What a difference is called, and that many differences are not called real because one of them is by chance."""

from __future__ import annotations

import pytest

from kvwatch.experiment.comparison_rows import difference, interval
from kvwatch.experiment.differences import Difference, DifferenceVerdict, differences, overall, same_within
from kvwatch.experiment.estimate import Estimate
from kvwatch.experiment.measures import HEADLINES, MEASURES

BY_ID = {one.id: one for one in MEASURES}
MEAN, SHARE, USAGE = "ttft_mean_seconds", "prefix_cache_hit_ratio", "kv_cache_usage_median_ratio"
WAITING, TOKENS = "requests_waiting_mean", "generation_tokens_per_second"


def judged(name: str, before: Estimate, after: Estimate, margin: float = 0.1) -> Difference:
    measure = BY_ID[name]
    return differences([measure], {name: before}, {name: after}, margin=margin)[name]


def known(value: float, error: float = 0.01, **more: object) -> Estimate:
    return Estimate(value, error, df=9, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "before", "after", "verdict"),
    [
        (MEAN, known(1.0), known(2.0), DifferenceVerdict.WORSE),
        (MEAN, known(2.0), known(1.0), DifferenceVerdict.BETTER),
        (TOKENS, known(100), known(200), DifferenceVerdict.BETTER),
        (TOKENS, known(200), known(100), DifferenceVerdict.WORSE),
        (MEAN, known(1.0), known(1.02), DifferenceVerdict.SAME),
        (MEAN, known(1.0, 0.001), known(1.05, 0.001), DifferenceVerdict.SAME),  # surely longer, and no matter
        (MEAN, known(1.0, 0.3), known(1.02, 0.3), DifferenceVerdict.NOT_SHOWN),
        (MEAN, known(1.0, 0.3), known(1.6, 0.3), DifferenceVerdict.NOT_SHOWN),
        (USAGE, known(0.3), known(0.6), DifferenceVerdict.HIGHER),
        (USAGE, known(0.6), known(0.3), DifferenceVerdict.LOWER),
        (SHARE, known(0.2), known(0.9), DifferenceVerdict.BETTER),
        (WAITING, known(0.0, 0.0), known(0.0, 0.0), DifferenceVerdict.SAME),
        (WAITING, known(0.0, 0.0), known(30.0, 2.0), DifferenceVerdict.WORSE),
        (WAITING, known(0.0, 0.0), known(30.0, 0.0), DifferenceVerdict.WORSE),
        (MEAN, known(1.0), known(0.0), DifferenceVerdict.NOT_ENOUGH),
        (MEAN, known(1.0), Estimate(missing="not exposed (looked for x)"), DifferenceVerdict.UNKNOWN),
        (
            MEAN,
            known(1.0),
            Estimate(2.0, reason="3 of the 20 observations that it needs"),
            DifferenceVerdict.NOT_ENOUGH,
        ),
    ],
)
def test_verdicts(name: str, before: Estimate, after: Estimate, verdict: DifferenceVerdict) -> None:
    assert judged(name, before, after).verdict is verdict


def test_an_interval_is_that_of_students_t() -> None:
    found = judged(MEAN, known(1.0, 0.1), known(2.0, 0.1))
    reach = 2.1009 * 0.1 * 2**0.5  # 18 degrees of freedom
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(2 * 2.718281828**-reach - 1, rel=1e-3)
    assert found.high == pytest.approx(2 * 2.718281828**reach - 1, rel=1e-3)
    assert judged(WAITING, known(1.0, 0.1), known(2.0, 0.1)).high == pytest.approx(1 + reach, rel=1e-3)


def test_a_wider_margin_makes_more_alike() -> None:
    pair = known(1.0, 0.02), known(1.2, 0.02)
    assert judged(MEAN, *pair).verdict is DifferenceVerdict.WORSE
    assert judged(MEAN, *pair, margin=0.5).verdict is DifferenceVerdict.SAME


def test_a_number_that_is_missing_is_never_taken_for_zero() -> None:
    found = judged(SHARE, Estimate(missing="prefix caching is off"), known(0.9))
    assert (found.value, found.low, found.high, found.p) == (None, None, None, None)
    assert found.reason == "prefix caching is off"


def test_quantiles_within_the_first_bucket_are_not_told_apart() -> None:
    low = judged("queue_p50_seconds", known(0.01, within=(0.0, 0.3)), known(0.29, within=(0.0, 0.3)))
    assert low.verdict is DifferenceVerdict.NOT_SHOWN
    assert low.reason == "both are below 0.3 s, the first bound of vLLM's buckets"
    high = judged("queue_p50_seconds", known(0.01, within=(0.0, 0.3)), known(0.4, within=(0.3, 0.5)))
    assert high.verdict is DifferenceVerdict.WORSE


def test_headline_measures_share_the_level() -> None:
    """A difference that alone would be called one is none among others that are alike; a clear one stays."""
    alike = {one.id: known(1.0, 0.1) for one in HEADLINES}
    shifted = alike | {"ttft_p95_seconds": known(1.36, 0.1)}
    (alone,) = differences([BY_ID["ttft_p95_seconds"]], alike, shifted, margin=0.1).values()
    assert alone.verdict is DifferenceVerdict.WORSE
    among = differences(HEADLINES, alike, shifted, margin=0.1)["ttft_p95_seconds"]
    assert among.verdict is DifferenceVerdict.NOT_SHOWN
    assert (among.reason or "").startswith("significant by itself")
    assert among.p == pytest.approx(len(HEADLINES) * (alone.p or 0))
    clear = differences(HEADLINES, alike, alike | {"ttft_p95_seconds": known(3.0, 0.1)}, margin=0.1)
    assert clear["ttft_p95_seconds"].verdict is DifferenceVerdict.WORSE


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("same same", DifferenceVerdict.SAME),
        ("same not-shown", DifferenceVerdict.NOT_SHOWN),
        ("same not-shown worse", DifferenceVerdict.WORSE),
        ("better not-enough", DifferenceVerdict.BETTER),
        ("better worse", None),
        ("not-enough unknown", DifferenceVerdict.NOT_ENOUGH),
        ("unknown", DifferenceVerdict.NOT_ENOUGH),
        ("same not-enough", DifferenceVerdict.SAME),
    ],
)
def test_the_whole(said: str, verdict: DifferenceVerdict | None) -> None:
    names = {
        "not-shown": DifferenceVerdict.NOT_SHOWN,
        "not-enough": DifferenceVerdict.NOT_ENOUGH,
        "unknown": DifferenceVerdict.UNKNOWN,
    }
    found = [Difference(names.get(word) or DifferenceVerdict(word)) for word in said.split()]
    assert overall(found) is verdict


def test_differences_in_words() -> None:
    ratio, share, plain = BY_ID[MEAN], BY_ID[SHARE], BY_ID[WAITING]
    assert [difference(ratio, one) for one in (0.0, 0.025, -0.584, 1.5, 2.0, 41.3, 5000.0, None)] == [
        "0 %",
        "+2.5 %",
        "−58 %",
        "+150 %",
        "×3",
        "×42",
        "×1,000 or more",
        "",
    ]
    assert [difference(share, one) for one in (-0.0018, 0.32)] == ["−0.18 points", "+32 points"]
    assert difference(plain, 32.8) == "+33"
    assert interval(ratio, Difference(DifferenceVerdict.WORSE, 0.1, -0.1, 0.3)) == "−10 to +30 %"
    assert interval(ratio, Difference(DifferenceVerdict.WORSE, 2.0, 0.5, 4.0)) == "+50 % to ×5"
    assert interval(share, Difference(DifferenceVerdict.WORSE, -0.8, -1.2, -0.4)) == "−100 to −40 points"
    assert interval(plain, Difference(DifferenceVerdict.SAME, 0.0, 0.0, 0.0)) == ""


@pytest.mark.parametrize("shift", [-0.06, 0.0, 0.09])
def test_runs_are_the_same_with_the_margin_that_is_said_and_not_with_less(shift: float) -> None:
    headlines = [one for one in HEADLINES if one.id not in {WAITING, "preemptions_per_finished_request"}]
    before = {one.id: known(1.0, 0.02) for one in headlines}
    after = before | {TOKENS: known(1 + shift, 0.05), "ttft_p95_seconds": known(1 + shift, 0.06)}

    def whole(margin: float) -> DifferenceVerdict | None:
        return overall(list(differences(headlines, before, after, margin=margin).values()))

    within = same_within(headlines, differences(headlines, before, after, margin=0.01))
    assert within is not None
    assert (whole(within), whole(within - 0.01)) == (DifferenceVerdict.SAME, DifferenceVerdict.NOT_SHOWN)


@pytest.mark.parametrize(
    ("name", "one", "within"),
    [
        (MEAN, Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -1 / 3, 0.2), 0.5),
        (MEAN, Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -0.1, 0.51), None),
        (MEAN, Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -0.4, 0.1), None),
        (MEAN, Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -1.0, 9.0), None),
        (MEAN, Difference(DifferenceVerdict.NOT_SHOWN, reason="both lie below 0.3 s"), None),
        (MEAN, Difference(DifferenceVerdict.NOT_ENOUGH, 0.1), None),
        (MEAN, Difference(DifferenceVerdict.UNKNOWN), 0.04),
        (WAITING, Difference(DifferenceVerdict.SAME, 0.0, 0.0, 0.1), 0.04),
        (WAITING, Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -1.0, 1.0), None),
    ],
)
def test_a_margin_is_said_only_where_all_are_told(name: str, one: Difference, within: float | None) -> None:
    narrow = Difference(DifferenceVerdict.NOT_SHOWN, 0.0, -0.01, 0.0301)
    assert same_within([BY_ID[TOKENS], BY_ID[name]], {TOKENS: narrow, name: one}) == within
