"""What ``nightshift init`` puts into a new lab: kernels, evals, recipes and settings."""

from __future__ import annotations

import secrets
from importlib import resources
from importlib.resources.abc import Traversable

README = """# A Nightshift lab

`nightshift.toml` holds the settings, `kernels/` one folder per Triton kernel (`task.py` is the judge's side,
`kernel.py` the current best), `evals/` one file per eval, `recipes/` how data are made and models trained.
`.nightshift/` is state: ledger, artifacts, checkpoints; it is not tracked.

    nightshift night            one night, now
    nightshift report           the morning after
    nightshift review list      what waits for a decision
"""


def starter_files(name: str) -> dict[str, bytes]:
    """Path in the lab → content. ``name`` is what the lab calls itself."""
    from model.families import STARTER_FAMILIES_TOML

    settings = (resources.files("flows") / "starter" / "nightshift.toml").read_text(encoding="utf-8")
    settings = settings.replace("@NAME@", name).replace("@LAB_ID@", secrets.token_hex(8))
    files = {
        "nightshift.toml": (settings.rstrip() + "\n\n" + STARTER_FAMILIES_TOML.strip() + "\n").encode(),
        ".gitignore": b".nightshift/\n__pycache__/\n",
        "README.md": README.encode(),
    }
    for folder in sorted((resources.files("kernels") / "starter").iterdir(), key=lambda item: item.name):
        if folder.is_dir() and not folder.name.startswith("_"):
            files |= _texts(folder, f"kernels/{folder.name}", ".py")
    files |= _texts(resources.files("model") / "starter" / "evals", "evals", ".py")
    files |= _texts(resources.files("model") / "starter" / "recipes", "recipes", ".toml")
    return files


def _texts(folder: Traversable, target: str, suffix: str) -> dict[str, bytes]:
    return {
        f"{target}/{item.name}": item.read_bytes()
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.is_file() and item.name.endswith(suffix) and not item.name.startswith("_")
    }
