"""Words about a weakness: the model chooses from lists, the numbers come from the figures."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agents.record import Recorder
from agents.surveyor import EVAL_CAUSES, EVAL_REMEDIES, KERNEL_CAUSES, describe_weakness, read_weakness
from model.language_model import LanguageModel
from tests.model.conftest import write_tiny_model
from workspace.lab import Lab

ROW: dict[str, Any] = {
    "family": "chain_sum", "title": "Sums of two numbers", "n": 40, "strict": 0.1, "stderr": 0.0474, "lenient": 0.123,
}  # fmt: skip
CELL: dict[str, Any] = {"name": "rmsnorm/sm_90/4096", "time_us": 14.9, "floor_us": 9.7}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder, seed=1)
    return LanguageModel.load(folder)


def test_without_a_reading_it_says_what_was_measured() -> None:
    title, hypothesis = describe_weakness(ROW)
    assert title == "Learn sums of two numbers"
    assert hypothesis == "chain_sum: 10.0% right (standard error 4.7%) on 40 items, 12.3% with partial credit."


@pytest.mark.parametrize(("kind", "figures"), [("eval", ROW), ("kernel", CELL)])
def test_the_model_chooses_and_invents_no_number(
    kind: str, figures: dict[str, Any], model: LanguageModel, lab: Lab, night_id: int
) -> None:
    reading = read_weakness(model, figures, Recorder(lab, night_id, "surveyor"), 5, kind=kind)
    assert reading is not None
    _title, plain = describe_weakness(figures, kind=kind)
    _title, hypothesis = describe_weakness(figures, reading, kind=kind)
    causes = EVAL_CAUSES if kind == "eval" else KERNEL_CAUSES
    assert causes[reading.cause] in hypothesis
    assert re.findall(r"\d+", hypothesis) == re.findall(r"\d+", plain)
    assert read_weakness(model, figures, Recorder(lab, night_id, "surveyor"), 5, kind=kind) == reading


def test_kernel_and_eval_words_differ() -> None:
    assert not EVAL_CAUSES.keys() & KERNEL_CAUSES.keys()
    assert len(EVAL_REMEDIES) == len(set(EVAL_REMEDIES.values()))
    with pytest.raises(ValueError, match="kind"):
        describe_weakness(ROW, kind="other")
