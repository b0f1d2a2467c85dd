"""Colours that people with any colour vision can distinguish: the palette of Okabe and Ito.

A regime has the same colour in every panel of every dashboard. Idle, unknown and down are greys of different
lightness. No meaning depends on red versus green.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwatch.core.history.regimes import Regime
from kvwatch.core.judgement.symptoms import Severity

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
LIGHT, GREY, DARK = "#C8C8C8", "#909090", "#5C5C5C"

GOOD, LOOK, ACT = GREEN, ORANGE, VERMILLION
"""Fine; look at it; act on it."""

REGIME: Mapping[str, str] = {
    Regime.IDLE: LIGHT,
    Regime.FLOWING: GREEN,
    Regime.FULL: YELLOW,
    Regime.KV_LIMITED: VERMILLION,
    Regime.SEQUENCE_LIMITED: BLUE,
    Regime.PREFILL_LIMITED: SKY,
    Regime.DEFERRED: PURPLE,
    Regime.STALLED: ORANGE,
    Regime.UNKNOWN: GREY,
    Regime.DOWN: DARK,
}
SEVERITY: Mapping[str, str] = {Severity.CRITICAL: ACT, Severity.WARNING: LOOK, Severity.INFO: SKY}

SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, GREY)
"""For series without a colour of their own, in this order."""
