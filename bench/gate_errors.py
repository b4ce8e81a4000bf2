"""How often does the gate promote what is no better, and how often does it find what is? Simulated nights.

    python -m bench.gate_errors [--nights 20000] [--seed 1] [--json]

A night surveys FAMILIES families on few items, takes the two that look weakest (selection), trains CANDIDATES
successors and takes the one that looks best on a small development draw (selection again); then the gate judges it on
fresh items with exact McNemar, Holm over both targets, and pooled guards.  Under A/A every successor answers with its
parent's probabilities: any promotion is false, and so is one of a successor whose guards have really fallen by the
margin.  The counts are drawn by night in arrays, so the tests that the gate uses (``mcnemar_exact``, ``tango_z``) run
on all nights at once; Holm over two targets is written out and checked against ``stats.holm`` on the first nights.

Exit code 1 when a false-promotion rate's 99% interval (Clopper-Pearson) lies above alpha.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from workspace import stats

FAMILIES, CANDIDATES, TARGETS = 10, 4, 2
SURVEY_ITEMS, DEVELOPMENT_ITEMS = 32, 40
CHECKED_NIGHTS = 10  # statsmodels collects garbage at every call

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """What is true. ``effect`` is the gain of a target, ``guard_drop`` the fall of the guards."""

    name: str
    effect: float
    guard_drop: float
    false_if_promoted: bool
    target_items: int = 160
    guard_items: int = 500
    discordance: float = 0.2
    guard_discordance: float = 0.2
    alpha: float = 0.05
    margin: float = 0.05


SCENARIOS = (
    Scenario("A/A: nothing changed", 0.0, 0.0, True),
    Scenario("A/A, 400 target items", 0.0, 0.0, True, target_items=400),
    Scenario("target +30 points, guards down by the margin", 0.3, 0.05, True, discordance=0.34),
    Scenario("target +10 points, guards unchanged", 0.1, 0.0, False),
    Scenario("target +15 points, guards unchanged", 0.15, 0.0, False),
    Scenario("target +30 points, guards unchanged", 0.3, 0.0, False, discordance=0.34),
)


@dataclass(frozen=True)
class Rate:
    """Promotions among simulated nights, with the 99% Clopper-Pearson interval."""

    scenario: Scenario
    nights: int
    promoted: int
    target_better: int
    guards_held: int

    @property
    def rate(self) -> float:
        return self.promoted / self.nights

    @property
    def interval(self) -> tuple[float, float]:
        return stats.clopper_pearson(self.promoted, self.nights, 0.99)

    @property
    def sound(self) -> bool:
        """Whether a false-promotion rate is compatible with alpha; true by definition for power."""
        return not self.scenario.false_if_promoted or self.interval[0] <= self.scenario.alpha

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.scenario), "nights": self.nights, "promoted": self.promoted, "rate": self.rate,
            "interval99": list(self.interval), "target_better": self.target_better / self.nights,
            "guards_held": self.guards_held / self.nights, "sound": self.sound,
        }  # fmt: skip


def simulate(scenario: Scenario, nights: int, seed: int) -> Rate:
    """Promotions among ``nights`` independent nights."""
    rng = np.random.default_rng(seed)
    parent = _surveyed_parent(rng, nights)
    gained, lost = _best_successor(rng, scenario, parent)
    p_values = np.asarray(stats.mcnemar_exact(gained, lost))
    better = (_holm(p_values) < scenario.alpha) & (gained > lost)
    worse = (_holm(p_values) < scenario.alpha) & (gained < lost)
    up = (scenario.guard_discordance - scenario.guard_drop) / 2
    down = (scenario.guard_discordance + scenario.guard_drop) / 2
    guards = rng.multinomial(scenario.guard_items, [up, down, 1 - up - down], size=nights)
    z = stats.tango_z(guards[:, 0], guards[:, 1], scenario.guard_items, -scenario.margin)
    held = z > scipy_stats.norm.ppf(1 - scenario.alpha)
    promoted = better.any(axis=1) & ~worse.any(axis=1) & held
    return Rate(scenario, nights, int(promoted.sum()), int(better.any(axis=1).sum()), int(held.sum()))


def _surveyed_parent(rng: np.random.Generator, nights: int) -> Floats:
    """[nights, TARGETS] true accuracies of the families that looked weakest but not hopeless in the survey."""
    accuracy = rng.beta(1.0, 3.0, size=(nights, FAMILIES))
    seen = rng.binomial(SURVEY_ITEMS, accuracy) / SURVEY_ITEMS
    worth = np.where(seen > 0, 1 - seen, -1.0) + rng.uniform(0, 1e-6, size=seen.shape)
    chosen = np.argsort(-worth, axis=1)[:, :TARGETS]
    return np.take_along_axis(accuracy, chosen, axis=1)


def _best_successor(rng: np.random.Generator, scenario: Scenario, parent: Floats) -> tuple[Counts, Counts]:
    """(gained, lost), each [nights, TARGETS], of the candidate that looked best on a development draw.

    P(lost) cannot exceed the parent's accuracy, nor P(gained) its complement.
    """
    lost_share = np.minimum((scenario.discordance - scenario.effect) / 2, parent)
    gained_share = np.minimum(lost_share + scenario.effect, 1 - parent)
    successor = parent - lost_share + gained_share
    shape = (len(parent), CANDIDATES, TARGETS)
    development = rng.binomial(DEVELOPMENT_ITEMS, np.broadcast_to(successor[:, None], shape)).sum(axis=2)
    best = development.argmax(axis=1)
    # each candidate's outcome on the fresh items is drawn, then the chosen one is looked at
    discordant = rng.binomial(scenario.target_items, np.broadcast_to((gained_share + lost_share)[:, None], shape))
    total = gained_share + lost_share
    share = np.divide(gained_share, total, out=np.full_like(total, 0.5), where=total > 0)
    gained = rng.binomial(discordant, np.broadcast_to(share[:, None], shape))
    pick = best[:, None, None]
    of_best = np.take_along_axis(gained, pick, axis=1)[:, 0]
    return of_best, np.take_along_axis(discordant, pick, axis=1)[:, 0] - of_best


def _holm(p_values: Floats) -> Floats:
    """Holm over the last axis of [nights, 2]: the smaller doubled, the larger at least that."""
    low, high = p_values.min(axis=1), p_values.max(axis=1)
    smaller = np.minimum(1.0, 2 * low)
    adjusted: Floats = np.where(p_values == low[:, None], smaller[:, None], np.maximum(smaller, high)[:, None])
    for row, found in zip(p_values[:CHECKED_NIGHTS], adjusted, strict=False):
        assert np.allclose(stats.holm([float(p) for p in row]), found)
    return adjusted


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="False promotions and power of the gate, by simulation.")
    parser.add_argument("--nights", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    rates = [simulate(scenario, options.nights, options.seed + n) for n, scenario in enumerate(SCENARIOS)]
    if options.json:
        sys.stdout.write(json.dumps([rate.to_json() for rate in rates], indent=2) + "\n")
    else:
        _print_table(rates, time.monotonic() - started)
    return 0 if all(rate.sound for rate in rates) else 1


def _print_table(rates: list[Rate], wall_s: float) -> None:
    lines = [f"{'scenario':<46} {'items':>9} {'promoted':>9} {'99% interval':>18}  reading"]
    for rate in rates:
        low, high = rate.interval
        reading = "power" if not rate.scenario.false_if_promoted else "sound" if rate.sound else "ABOVE ALPHA"
        items = f"{rate.scenario.target_items}+{rate.scenario.guard_items}"
        lines.append(f"{rate.scenario.name:<46} {items:>9} {rate.rate:>9.2%} [{low:>7.2%}, {high:>7.2%}]  {reading}")
    selection = f"{TARGETS} targets of {FAMILIES} families, best of {CANDIDATES}"
    lines.append(f"{rates[0].nights} nights each, {selection}; {wall_s:.1f} s")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
