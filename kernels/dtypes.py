"""The dtypes a task may declare, and how their bytes become float64 and back.

bfloat16 has no NumPy type; it is carried as uint16 bit patterns and rounded to nearest even, as a GPU does.
Unit roundoff ``u`` = 2^-(p) for p bits of significand (Higham, Accuracy and Stability of Numerical Algorithms, 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Dtype:
    """``carrier`` is the NumPy type whose bytes are sent; ``smallest`` the smallest positive subnormal."""

    name: str
    carrier: str
    itemsize: int
    unit_roundoff: float
    smallest: float
    largest: float


DTYPES: dict[str, Dtype] = {
    "float32": Dtype("float32", "float32", 4, 2.0**-24, 2.0**-149, 3.4028234663852886e38),
    "float16": Dtype("float16", "float16", 2, 2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": Dtype("bfloat16", "uint16", 2, 2.0**-8, 2.0**-133, 3.3895313892515355e38),
    "int32": Dtype("int32", "int32", 4, 0.0, 0.0, 2.0**31 - 1),
    "int64": Dtype("int64", "int64", 8, 0.0, 0.0, 2.0**63 - 1),
}


def encode(values: npt.NDArray[np.float64], dtype: str) -> bytes:
    """Row-major bytes of ``values`` rounded to ``dtype`` (nearest even; beyond the largest becomes infinite)."""
    if dtype == "bfloat16":
        single = np.ascontiguousarray(values, dtype=np.float32)
        bits = single.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(single)] = 0x7FC0
        return rounded.tobytes()
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values).astype(DTYPES[dtype].carrier).tobytes()


def decode(data: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """float64 values of row-major bytes."""
    raw = np.frombuffer(data, dtype=DTYPES[dtype].carrier).reshape(shape)
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)


def rounded(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[np.float64]:
    """``values`` as a tensor of ``dtype`` would hold them."""
    return decode(encode(values, dtype), dtype, values.shape)


def poison(dtype: str, count: int) -> bytes:
    """``count`` elements of a NaN bit pattern that no arithmetic produces (integers: a constant nobody draws)."""
    patterns = {"float32": 0xFFEDBEEF, "float16": 0xFEAD, "bfloat16": 0xFFED, "int32": 0xBADC0DED}
    size = DTYPES[dtype].itemsize
    return patterns.get(dtype, 0xBADC0DEDBADC0DED).to_bytes(size, "little") * count
