"""The comparison that decides: bytes from the sandbox against the fp64 reference, in the judge's own process.

Error is ||out - ref|| / ||ref|| (Frobenius), over all elements and for the worst row. The budget follows from the dtype
and the reduction length n: results rounded to unit roundoff u after float32 arithmetic whose sums walk
at random,

    budget = 2 u + u32 (12 + 2 sqrt(n)),   u32 = 2^-24     (sqrt(n) u: Higham, Mary, SIAM J. Sci. Comput. 41(5), 2019)

a row may have four times that, plus what subnormal results of the dtype cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.dtypes import DTYPES, rounded

Array = npt.NDArray[np.float64]
ROW_FACTOR = 4.0
SINGLE_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Comparison:
    """``error`` and ``worst_row`` are relative; ``code`` is None when the output is right."""

    error: float
    worst_row: float
    budget: float
    code: str | None
    detail: str


def budget(dtype: str, reduction_length: int) -> float:
    """Largest relative error that an honest kernel may have."""
    return 2 * DTYPES[dtype].unit_roundoff + SINGLE_ROUNDOFF * (12 + 2 * math.sqrt(max(reduction_length, 1)))


def compare(output: Array, reference: Array, dtype: str, reduction_length: int) -> Comparison:
    """One output against its reference; both float64 of the same shape."""
    limit = budget(dtype, reduction_length)
    held = rounded(reference, dtype)
    finite = np.isfinite(held)
    wrong = np.isfinite(output) != finite
    with np.errstate(invalid="ignore"):
        wrong |= ~finite & ~((output == held) | (np.isnan(output) & np.isnan(held)))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        kinds = f"{_kind(output[first])} where the reference is {_kind(held[first])}"
        detail = f"{int(wrong.sum())} of {wrong.size} elements, first at {list(first)}: {kinds}"
        return Comparison(math.inf, math.inf, limit, "nonfinite-output", detail)
    difference = np.where(finite, output - np.where(finite, reference, 0.0), 0.0)
    size = np.where(finite, reference, 0.0)
    error = _ratio(float(np.linalg.norm(difference)), float(np.linalg.norm(size)), 0.0)
    rows = difference.reshape(-1, difference.shape[-1]) if difference.ndim else difference.reshape(1, 1)
    sizes = size.reshape(rows.shape)
    row_errors, row_sizes = np.linalg.norm(rows, axis=1), np.linalg.norm(sizes, axis=1)
    floor = DTYPES[dtype].smallest * math.sqrt(rows.shape[1])
    excess = np.maximum(row_errors - floor, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(row_sizes > 0, excess / row_sizes, np.where(excess > 0, math.inf, 0.0))
    worst = float(relative.max()) if relative.size else 0.0
    if error > limit or worst > ROW_FACTOR * limit:
        detail = (
            f"relative error {error:.3g} (worst row {worst:.3g}) against a budget of {limit:.3g} "
            f"(row {ROW_FACTOR * limit:.3g}) in {dtype}"
        )
        return Comparison(error, worst, limit, "numerical-mismatch", detail)
    return Comparison(error, worst, limit, None, "")


def _ratio(difference: float, size: float, floor: float) -> float:
    if size == 0:
        return 0.0 if difference <= floor else math.inf
    return float(difference / size)


def _kind(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("inf" if value > 0 else "-inf") if math.isinf(value) else "finite"
