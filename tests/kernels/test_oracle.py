"""The oracle against torch: references in float64, rounding to dtypes, budgets, and what counts as wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels.dtypes import DTYPES, decode, encode, poison, rounded
from kernels.library import STARTER_DIR, load_task
from kernels.oracle import budget, compare

RNG = np.random.default_rng
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", list(TORCH))
def test_rounding_is_that_of_torch(dtype: str) -> None:
    values = RNG(1).standard_normal(4096) * np.exp(RNG(2).uniform(-80, 80, 4096))
    with np.errstate(over="ignore"):
        ours = rounded(values, dtype)
    theirs = torch.from_numpy(values).float().to(TORCH[dtype]).double().numpy()
    if dtype == "float16":  # torch goes through float32; NumPy rounds once
        assert np.mean(ours == theirs) > 0.999
    else:
        assert (ours == theirs).all()


@pytest.mark.parametrize("dtype", list(TORCH))
def test_bytes_are_those_of_torch(dtype: str) -> None:
    values = rounded(RNG(3).standard_normal((5, 7)), dtype)
    data = torch.from_numpy(values).to(TORCH[dtype]).view(torch.uint8).numpy().tobytes()
    assert encode(values, dtype) == data
    assert (decode(data, dtype, (5, 7)) == values).all()


@pytest.mark.parametrize("dtype", list(TORCH))
def test_poison_is_nan_and_unit_roundoff_is_that_of_torch(dtype: str) -> None:
    assert np.isnan(decode(poison(dtype, 3), dtype, (3,))).all()
    assert DTYPES[dtype].unit_roundoff == torch.finfo(TORCH[dtype]).eps / 2
    assert DTYPES[dtype].smallest == torch.finfo(TORCH[dtype]).smallest_normal * torch.finfo(TORCH[dtype]).eps
    assert DTYPES[dtype].largest == torch.finfo(TORCH[dtype]).max


@pytest.mark.parametrize("scale", ["unit", "large", "tiny", "shifted"])
def test_rmsnorm_reference(scale: str) -> None:
    task = load_task(STARTER_DIR / "rmsnorm")
    values = task.inputs((7, 333), "float32", RNG(4), scale)
    x, weight = torch.from_numpy(values["x"]), torch.from_numpy(values["weight"])
    theirs = torch.nn.functional.rms_norm(x, (333,), weight, float(values["eps"])).numpy()
    np.testing.assert_allclose(task.expected(values)[0], theirs, rtol=1e-12)


@pytest.mark.parametrize("scale", ["unit", "offset", "masked", "negative-offset", "peaked"])
def test_softmax_reference(scale: str) -> None:
    task = load_task(STARTER_DIR / "softmax")
    values = task.inputs((7, 333), "float32", RNG(5), scale)
    theirs = torch.softmax(torch.from_numpy(values["x"]), -1).numpy()
    np.testing.assert_allclose(task.expected(values)[0], theirs, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("scale", ["unit", "saturated", "tiny", "integers"])
def test_swiglu_reference(scale: str) -> None:
    task = load_task(STARTER_DIR / "swiglu")
    values = task.inputs((7, 333), "float32", RNG(6), scale)
    theirs = torch.nn.functional.silu(torch.from_numpy(values["gate"])) * torch.from_numpy(values["up"])
    np.testing.assert_allclose(task.expected(values)[0], theirs.numpy(), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype", list(TORCH))
def test_torch_itself_is_within_the_budget(dtype: str) -> None:
    """The honest alternative: torch's own softmax and RMSNorm in the dtype, over long rows."""
    values = rounded(RNG(7).standard_normal((16, 8192)), dtype)
    x = torch.from_numpy(values).to(TORCH[dtype])
    exact = torch.from_numpy(values)
    rms_norm = torch.nn.functional.rms_norm
    for got, want in (
        (torch.softmax(x, -1), torch.softmax(exact, -1)),
        (rms_norm(x, (8192,), eps=1e-6), rms_norm(exact, (8192,), eps=1e-6)),
    ):
        result = compare(got.double().numpy(), want.numpy(), dtype, 8192)
        assert result.code is None, result.detail


def test_half_precision_fails_in_float32() -> None:
    reference = RNG(8).standard_normal((4, 1000))
    result = compare(rounded(reference, "float16"), reference, "float32", 1000)
    assert result.code == "numerical-mismatch"
    assert result.error == pytest.approx(
        np.linalg.norm(rounded(reference, "float16") - reference) / np.linalg.norm(reference)
    )


def test_one_wrong_row_among_many_fails() -> None:
    reference = RNG(9).standard_normal((10_000, 8))
    output = reference.copy()
    output[17] *= 1 + 1e-5
    result = compare(output, reference, "float32", 8)
    assert result.error < result.budget
    assert result.code == "numerical-mismatch"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_unexpected_values_that_are_not_finite(value: float) -> None:
    reference = RNG(10).standard_normal((3, 5))
    output = reference.copy()
    output[1, 2] = value
    assert compare(output, reference, "float32", 5).code == "nonfinite-output"
    assert compare(reference, output, "float32", 5).code == "nonfinite-output"
    assert compare(output, output, "float32", 5).code is None


def test_infinity_of_the_other_sign_and_overflow_of_the_dtype() -> None:
    reference = np.array([[1.0, 1e6]])
    assert compare(np.array([[1.0, math.inf]]), reference, "float16", 2).code is None
    assert compare(np.array([[1.0, -math.inf]]), reference, "float16", 2).code == "nonfinite-output"
    assert compare(np.array([[1.0, 65504.0]]), reference, "float16", 2).code == "nonfinite-output"


def test_zero_reference_needs_zero_output() -> None:
    zeros = np.zeros((2, 4))
    assert compare(zeros, zeros, "float32", 4).code is None
    assert compare(zeros + 1e-3, zeros, "float32", 4).code == "numerical-mismatch"


def test_budget_grows_with_roundoff_and_length() -> None:
    assert budget("float32", 1) < budget("float32", 4096) < budget("float16", 4096) < budget("bfloat16", 4096)
    assert budget("float32", 4096) < 1e-5
