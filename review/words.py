"""Figures as people read them: percent, points, p-values, durations; and the one sentence that opens the report."""

from __future__ import annotations

from collections.abc import Sequence

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


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", MINUS)


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
    """The difference in the eval's own unit: percentage points for shares, plain otherwise."""
    return points(claim.difference) if claim.is_share else signed(claim.difference)


def value_of(claim: Claim, value: float) -> str:
    return percent(value) if claim.is_share else f"{value:.2f}"


def interval_of(claim: Claim) -> str:
    """The 95% interval of the difference, in the same unit as `difference_of`."""
    if claim.ci95 is None:
        return "\u2013"
    low, high = claim.ci95
    write = points if claim.is_share else signed
    return f"{write(low)} to {write(high)}"


def margin_of(claim: Claim) -> str:
    if claim.margin is None:
        return "\u2013"
    return f"{100 * claim.margin:g}{NBSP}points" if claim.is_share else f"{claim.margin:g}"


def target_phrase(claim: Claim) -> str:
    """One target with interval, test, p and power: the body of the opening sentence."""
    verb = {"better": "rose", "worse": "fell"}.get(claim.outcome, "moved")
    unit = " points" if claim.is_share else ""
    name = "Holm-adjusted p" if claim.p_holm is not None else "p"
    power = f", power{NBSP}{claim.power:.2f}" if claim.power is not None else ""
    return (
        f"{claim.eval} {verb} from {value_of(claim, claim.parent)} to {value_of(claim, claim.successor)} "
        f"({difference_of(claim)}{unit}, 95% interval {interval_of(claim)}; "
        f"{p_equals(claim.p_holm if claim.p_holm is not None else claim.p, name)}{power}; n{NBSP}={NBSP}{claim.n})"
    )


def guards_phrase(guards: Sequence[Claim]) -> str:
    """How the guards stand: all held, or which did not."""
    counted = [g for g in guards if g.counts]
    if not counted:
        return "no guard counted"
    held = [g for g in counted if g.outcome in ("better", "non-inferior")]
    if len(held) == len(counted):
        every = {1: "the one guard", 2: "both guards"}.get(len(counted), f"all {len(counted)} guards")
        return f"{every} held within {'its' if len(counted) == 1 else 'their'} margin{'s' if len(counted) > 1 else ''}"
    worse = [g for g in counted if g.outcome == "worse"]
    open_ones = [g for g in counted if g.outcome == "inconclusive"]
    parts = [guard_phrase(g) for g in worse]
    if open_ones:
        names = ", ".join(g.eval for g in open_ones)
        parts.append(f"{names} {'is' if len(open_ones) == 1 else 'are'} inconclusive within the margin")
    return "; ".join([*parts, f"{len(held)} of {len(counted)} guards held"])


def guard_phrase(claim: Claim) -> str:
    unit = " points" if claim.is_share else ""
    return f"{claim.eval} got worse by more than its margin ({difference_of(claim)}{unit}, {interval_of(claim)})"


def integrity_phrase(decision: Decision) -> str:
    failed = [c.check for c in decision.integrity if not c.passed]
    if failed:
        return f"integrity failed: {', '.join(failed)}"
    return "integrity is clean" if decision.integrity else "no integrity check was recorded"


def opening(decision: Decision) -> str:
    """The opening sentence after "Promote" or "Hold", for a night whose gate has spoken."""
    body = "; ".join(target_phrase(t) for t in decision.targets) or "no target was tested"
    guards = guards_phrase(decision.guards)
    first, then = (guards, body) if _guards_forbid(decision) else (body, guards)
    return f"{sentence_case(first)}. {sentence_case(then)}; {integrity_phrase(decision)}."


def _guards_forbid(decision: Decision) -> bool:
    """The target is better, yet the parent stays: then the reason comes first."""
    better = any(t.outcome == "better" for t in decision.targets)
    return decision.verdict != "promote" and better and any(g.counts for g in decision.guards)


def sentence_case(text: str) -> str:
    """A capital first, except for names of evals, which are written as they are."""
    first = text.split(" ", 1)[0]
    return text if "_" in first else text[:1].upper() + text[1:]
