"""Settings: wrong values name the file, the key, the value and what is allowed; profiles lie over the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspace.errors import SurroundingsError, UserError
from workspace.settings import load_settings

HEAD = 'lab_id = "0123456789abcdef"\n'
FILE = Path("nightshift.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 1\n", ["colour", "unknown key", "allowed", "kernels"]),
        ("[kernels]\ncandidats = 3\n", ["kernels.candidats", "unknown key", "candidates"]),
        ("[kernels]\ncandidates = 0\n", ["kernels.candidates", "greater than or equal to 1", "0"]),
        ('[kernels]\ntargets = ["sm_99"]\n', ["kernels.targets.0", "sm_99", "sm_80"]),
        ("[judge]\nalpha = 2\n", ["judge.alpha", "less than 1", "2"]),
        ("[survey.families.x]\ndataset = 3\n", ["survey.families.x.dataset", "3"]),
        ("[sandbox]\npull = true\n", ["sandbox", "image"]),
        ("[profiles.a]\nlab_id = 'x'\n", ["profiles", "lab_id"]),
        ("[kernels\n", ["not valid TOML", "line 2"]),
    ],
)
def test_what_is_wrong_is_named(text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(FILE, text=HEAD + text)
    for word in words:
        assert word in str(caught.value)


def test_a_profile_lies_over_the_rest() -> None:
    text = HEAD + "[kernels]\ncandidates = 5\nmin_gain = 0.1\n[profiles.small.kernels]\ncandidates = 1\n"
    settings = load_settings(FILE, "small", text)
    assert (settings.kernels.candidates, settings.kernels.min_gain) == (1, 0.1)
    assert load_settings(FILE, text=text).kernels.candidates == 5


def test_a_wrong_value_of_a_profile_names_the_profile() -> None:
    with pytest.raises(UserError, match=r"profiles\.small"):
        load_settings(FILE, "small", HEAD + "[profiles.small.kernels]\ncandidates = 0\n")


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="default"):
        load_settings(FILE, "other", HEAD)


def test_a_missing_file_is_the_surroundings_fault(tmp_path: Path) -> None:
    with pytest.raises(SurroundingsError):
        load_settings(tmp_path / "nightshift.toml")
