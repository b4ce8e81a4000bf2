"""Figures as people read them: percent, points, p-values, durations; and the one sentence that opens the report."""

from __future__ import annotations

import math

from review.facts import Claim, Decision

MINUS = "\u2212"
NBSP = "\u00a0"
SUPERSCRIPT = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def percent(share: float, digits: int = 1) -> str:
    """0.43 → 43.0%."""
    return f"{100 * share:.{digits}f}%".replace("-", MINUS)


def points(difference: float) -> str:
    """A difference of shares with its sign, in percentage points: 0.32 → +32.0."""
    value = round(100 * difference, 1) + 0.0
    return f"{value:+.1f}".replace("-", MINUS)


def p_value(p: float | None) -> str:
    """Three decimals, or one digit and a power of ten below 0.001: 3e-12 → 3 × 10⁻¹²."""
    if p is None:
        return "\u2013"
    if p < 0.001:
        mantissa, _, exponent = f"{p:.0e}".partition("e")
        return f"{mantissa}{NBSP}\u00d7{NBSP}10{str(int(exponent)).translate(SUPERSCRIPT)}" if p > 0 else "0"
    return f"{p:.3f}"


def p_equals(p: float | None, name: str = "p") -> str:
    return f"{name}{NBSP}={NBSP}{p_value(p)}"


def microseconds(value: float | None) -> str:
    """A predicted kernel time with three significant digits."""
    if value is None:
        return "\u2013"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{NBSP}\u00b5s"


def duration(seconds: float | None) -> str:
    """373 → 6 min 13 s."""
    if seconds is None:
        return "\u2013"
    whole = round(seconds)
    if 0 < seconds < 1:
        return f"{seconds:.1f}{NBSP}s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}{NBSP}h {minutes}{NBSP}min"
    if minutes:
        return f"{minutes}{NBSP}min {left}{NBSP}s" if left else f"{minutes}{NBSP}min"
    return f"{left}{NBSP}s"


def count(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.0f}"


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def spent(name: str, value: float | None) -> str:
    """A budget figure in its own unit."""
    if value is None:
        return "no limit"
    if name == "usd":
        return f"${value:,.2f}"
    return duration(value) if name.endswith("_s") else count(value)


SPEND_NAMES = {"tokens": "Tokens", "usd": "Money", "wall_s": "Wall clock", "accelerator_s": "Accelerator"}


def short(digest: str, length: int = 12) -> str:
    """A sha256 as it is shown: without its prefix, twelve characters."""
    return digest.removeprefix("sha256:")[:length]


def difference_of(claim: Claim) -> str:
    """The difference in percentage points; of perplexity in percent of the parent's."""
    return points(claim.difference) if claim.is_share else growth(claim.difference)


def growth(log_ratio: float) -> str:
    """A difference of logarithms as a change in percent: 0.036 → +3.7%."""
    return f"{100 * (math.exp(log_ratio) - 1) + 0.0:+.1f}%".replace("-", MINUS)


def value_of(claim: Claim, value: float) -> str:
    """A score in percent, or a perplexity (the exponential of what is stored)."""
    return percent(value) if claim.is_share else f"{math.exp(value):.1f}"


def interval_of(claim: Claim) -> str:
    """The 95% interval of the difference, in the same unit as `difference_of`."""
    if claim.ci95 is None:
        return "\u2013"
    low, high = claim.ci95
    write = points if claim.is_share else growth
    return f"{write(low)} to {write(high)}"


def margin_of(claim: Claim) -> str:
    if claim.margin is None:
        return "\u2013"
    return f"{100 * claim.margin:g}{NBSP}points" if claim.is_share else growth(claim.margin).lstrip("+")


def name_of(claim: Claim) -> str:
    return claim.eval.replace("-", " ") if not claim.is_share else claim.eval


def target_phrase(claim: Claim) -> str:
    """One target with interval, test, p and power: the body of the opening sentence."""
    verb = {"better": "rose", "worse": "fell"}.get(claim.outcome, "moved")
    p = p_equals(claim.p_holm, "Holm-adjusted p") if claim.p_holm is not None else p_equals(claim.p)
    power = f", power{NBSP}{claim.power:.2f}" if claim.power is not None else ""
    changed = f", {claim.gained} gained and {claim.lost} lost" if claim.gained is not None else ""
    name, before, after = name_of(claim), value_of(claim, claim.parent), value_of(claim, claim.successor)
    return (
        f"{name} {verb} from {before} to {after} "
        f"({difference_of(claim)} points, 95% interval {interval_of(claim)}; "
        f"{p}{power}; n{NBSP}={NBSP}{claim.n}{changed})"
    )


def guards_phrase(decision: Decision) -> str:
    """How the guards stand, those that did not hold first, each with its difference, interval and margin."""
    guards = decision.guards
    if not guards:
        return "no guard counted"
    kinds = sum(k.counts for k in decision.kinds)
    states = (("worse", "got worse"), ("inconclusive", "left open"), ("non-inferior", "held"), ("better", "held"))
    groups: dict[str, list[str]] = {}
    for outcome, verb in states:
        groups.setdefault(verb, []).extend(_guard_phrase(g, kinds) for g in guards if g.outcome == outcome)
    parts = [f"{' and '.join(found)} {verb}" for verb, found in groups.items() if found]
    fallen = [k.kind for k in decision.kinds if k.worse]
    return "; ".join(parts + ([f"worse by itself: {', '.join(fallen)}"] if fallen else []))


def _guard_phrase(claim: Claim, kinds: int) -> str:
    of = f" of {plural(kinds, 'kind')}" if claim.is_share and kinds else ""
    unit = " points" if claim.is_share else ""
    return f"{name_of(claim)}{of} ({difference_of(claim)}{unit}, {interval_of(claim)}, margin {margin_of(claim)})"


def integrity_phrase(decision: Decision) -> str:
    failed = [c.check for c in decision.integrity if not c.passed]
    if failed:
        return f"integrity failed: {', '.join(failed)}"
    return "integrity is clean" if decision.integrity else "no integrity check was recorded"


def opening(decision: Decision) -> str:
    """The opening sentence after "Promote" or "Hold", for a night whose gate has spoken."""
    body = "; ".join(target_phrase(t) for t in decision.targets) or "no target was tested"
    guards = guards_phrase(decision)
    first, then = (guards, body) if _guards_forbid(decision) else (body, guards)
    return sentence_case(f"{first}; {then}; {integrity_phrase(decision)}.")


def _guards_forbid(decision: Decision) -> bool:
    """The target is better, yet the parent stays: then the reason comes first."""
    better = any(t.outcome == "better" for t in decision.targets)
    return decision.verdict != "promote" and better and bool(decision.guards)


def sentence_case(text: str) -> str:
    """A capital first, except for names of evals, which are written as they are."""
    first = text.split(" ", 1)[0]
    return text if "_" in first else text[:1].upper() + text[1:]
