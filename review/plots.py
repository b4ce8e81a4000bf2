"""The report's plots as inline SVG: no file, no script, no font, and the page's own colours in light and dark.

Matplotlib draws with placeholder colours, which are then exchanged for CSS variables, so that one drawing serves both
themes. Text stays text (it can be read aloud, searched and selected). Each plot has a table beside it in the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from threading import Lock
from typing import TYPE_CHECKING, Any

from review.facts import Cell, Claim, GuardKind
from review.words import MINUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, LINE, ACCENT, PARENT, WARN = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", ACCENT: "--accent", PARENT: "--parent", WARN: "--warn"}
_RC_LOCK = Lock()  # matplotlib's settings are global, and pages are drawn in threads
WIDTH_IN = 7.2
ROW_IN = 0.36


def _figure(height_in: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _quiet(axes)
    return figure, axes


def _quiet(axes: Axes) -> None:
    """No box, thin ticks, a light grid only where it helps to read a value."""
    axes.patch.set_alpha(0)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(LINE)
    axes.tick_params(colors=SOFT, labelcolor=SOFT, length=0, labelsize=9)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=LINE, linewidth=0.6)


def _svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an `<svg>` element that scales with the page and describes itself."""
    import matplotlib as mpl

    figure.patch.set_alpha(0)
    stream = io.StringIO()
    with _RC_LOCK, mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"font: ([^;\"']*?)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", text)
    head = re.search(r'viewBox="([^"]+)"', text)
    assert head is not None
    opening = (
        f'<svg class="plot" viewBox="{head.group(1)}" role="img" aria-labelledby="{name}-title {name}-desc" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    return opening + text[text.index(">") + 1 :].strip()


def eval_scores(claims: Sequence[Claim], kinds: Sequence[GuardKind] = ()) -> str:
    """Parent and successor of every claim in percent, joined by a line, with the 95% interval of the difference.

    Below them the kinds of guard that the pool is made of; those that do not count are faint.

    The interval of the paired difference is drawn around the successor (parent + interval), because that is what was
    tested; a guard's margin is the tick to the left of its parent.
    """
    shown = [c for c in claims if c.is_share]
    figure, axes = _figure(0.75 + ROW_IN * (len(shown) + 0.8 * len(kinds)))
    places = [-float(row) for row in range(len(shown))]
    places += [-(len(shown) - 0.1) - 0.8 * row for row in range(len(kinds))]
    for y, claim in zip(places, shown, strict=False):
        if claim.ci95 is not None:
            low, high = (100 * (claim.parent + bound) for bound in claim.ci95)
            axes.plot([low, high], [y, y], color=ACCENT, linewidth=5, alpha=0.25, solid_capstyle="round")
        if claim.margin is not None:
            limit = 100 * (claim.parent - claim.margin)
            axes.plot([limit, limit], [y - 0.3, y + 0.3], color=WARN, linewidth=1.4)
        _pair(axes, y, claim.parent, claim.successor, 6.5, 1.0)
    for y, kind in zip(places[len(shown) :], kinds, strict=True):
        _pair(axes, y, kind.parent, kind.successor, 4.5, 0.85 if kind.counts else 0.35)
    names = [c.eval for c in shown] + [k.kind if k.counts else f"{k.kind} (does not count)" for k in kinds]
    axes.set_yticks(places, names)
    for row, label in enumerate(axes.get_yticklabels()):
        label.set_color(INK if row < len(shown) else SOFT)
        label.set_fontweight("bold" if row < len(shown) and shown[row].role == "target" else "normal")
    axes.set_ylim(places[-1] - 0.6, 0.6)
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -2.0), min(high, 102.0))
    axes.set_xlabel("right answers, %", color=SOFT, fontsize=9)
    words = "; ".join(f"{c.eval} {100 * c.parent:.1f} to {100 * c.successor:.1f} percent" for c in shown)
    return _svg(figure, "scores", "Eval scores, parent and successor", words)


def _pair(axes: Axes, y: float, parent: float, successor: float, size: float, strength: float) -> None:
    axes.plot([100 * parent, 100 * successor], [y, y], color=PARENT, linewidth=1.0, alpha=strength)
    axes.plot(100 * parent, y, "o", color=PARENT, markersize=size, alpha=strength, markeredgewidth=0)
    axes.plot(100 * successor, y, "o", color=ACCENT, markersize=size, alpha=strength, markeredgewidth=0)


def loss_curve(points: Sequence[Sequence[float]]) -> str:
    """Training loss over steps, and the KL to the parent where it was recorded."""
    figure, axes = _figure(2.5)
    steps = [p[0] for p in points]
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.grid(axis="x", visible=False)
    axes.plot(steps, [p[1] for p in points], color=ACCENT, linewidth=1.6)
    axes.annotate(
        "loss",
        (steps[-1], points[-1][1]),
        xytext=(6, 0),
        textcoords="offset points",
        color=ACCENT,
        fontsize=9,
        va="center",
    )
    kl = [(p[0], p[2]) for p in points if len(p) > 2]
    if kl:
        axes.plot([p[0] for p in kl], [p[1] for p in kl], color=PARENT, linewidth=1.4)
        axes.annotate(
            "KL to parent", kl[-1], xytext=(6, 0), textcoords="offset points", color=PARENT, fontsize=9, va="center"
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step", color=SOFT, fontsize=9)
    words = f"Loss from {points[0][1]:.2f} at step {steps[0]:g} to {points[-1][1]:.2f} at step {steps[-1]:g}"
    return _svg(figure, "loss", "Training loss by step", words)


def predicted_times(cells: Sequence[Cell]) -> str:
    """One row per cell: predicted time of each accepted candidate relative to the incumbent, and the physical floor.

    Relative, because cells differ by orders of magnitude; the table beside it has the microseconds.
    """
    shown = [c for c in cells if c.incumbent_us and c.best_us is not None]
    figure, axes = _figure(0.75 + ROW_IN * len(shown))
    for row, cell in enumerate(shown):
        y = len(shown) - 1 - row
        base = cell.incumbent_us or 1.0
        times = [c.predicted_us / base for c in cell.candidates if c.verdict == "accepted" and c.predicted_us]
        axes.plot(times, [y] * len(times), "o", color=SOFT, markersize=4.5, alpha=0.5, markeredgewidth=0)
        best = (cell.best_us or base) / base
        axes.plot(best, y, "o", color=ACCENT if best < 1 else SOFT, markersize=7)
        if cell.floor_us:
            axes.plot([cell.floor_us / base] * 2, [y - 0.3, y + 0.3], color=WARN, linewidth=1.6)
    axes.axvline(1.0, color=PARENT, linewidth=1.4)
    axes.set_yticks(range(len(shown)), [c.name for c in reversed(shown)], color=INK)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    low, high = axes.get_xlim()
    axes.set_xlim(max(0.0, low), min(high, 2.5))
    _ticks(axes, lambda value: f"{value:g}")
    axes.set_xlabel("predicted time / incumbent's predicted time (left is faster)", color=SOFT, fontsize=9)
    words = "; ".join(f"{c.name}: best candidate at {(c.best_us or 0) / (c.incumbent_us or 1):.2f}" for c in shown)
    return _svg(figure, "times", "Predicted time of each candidate relative to its incumbent", words)


def survey_scores(rows: Sequence[Any]) -> str:
    """The survey: strict accuracy of each family with one standard error each way; the chosen one stands out."""
    shown = sorted(rows, key=lambda r: -r.strict)
    figure, axes = _figure(0.75 + ROW_IN * 0.85 * len(shown))
    for y, line in enumerate(reversed(shown)):
        colour = ACCENT if line.chosen else PARENT
        width = 100 * line.stderr
        axes.plot([100 * line.strict - width, 100 * line.strict + width], [y, y], color=colour, linewidth=1.6)
        axes.plot(100 * line.strict, y, "o", color=colour, markersize=6)
    axes.set_yticks(range(len(shown)), [r.family for r in reversed(shown)], color=INK)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlim(left=min(-2.0, axes.get_xlim()[0]))
    _ticks(axes, lambda value: f"{value:g}".replace("-", MINUS))
    axes.set_xlabel("right answers, % (\u00b1 one standard error)", color=SOFT, fontsize=9)
    words = "; ".join(f"{r.family} {100 * r.strict:.1f} percent" for r in shown)
    return _svg(figure, "survey", "Survey: right answers by family", words)


def _ticks(axes: Axes, write: Callable[[float], str]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: write(float(value))))
