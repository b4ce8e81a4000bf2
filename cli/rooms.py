"""Are the top-level packages that Python finds ours? ``kernels`` and ``agents`` are also names of published packages.

Only the standard library is imported here: this runs before anything else of ours does.
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("cli", "review", "flows", "agents", "model", "kernels", "workspace")
# Published distributions that bring a top-level package of one of these names.
RIVALS = {"kernels": "kernels", "openai-agents": "agents"}


class ForeignPackage(Exception):
    """A package of somebody else's stands where a room of ours should; ``remedy`` is the command that helps."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def check_rooms() -> None:
    """Raise ForeignPackage when a room is not found beside this file, or a rival distribution is installed.

    ``transformers`` looks for the distribution ``kernels`` by name, so it does harm even where our folder wins.
    """
    ours = Path(__file__).resolve().parent.parent
    for distribution, room in RIVALS.items():
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        raise ForeignPackage(
            f"the package {distribution} {version} is installed; its module {room!r} has the name of one of ours",
            remedy=f"pip uninstall {distribution}, or install Nightshift in an environment of its own (make setup)",
        )
    for room in ROOMS:
        spec = find_spec(room)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != ours:
            raise ForeignPackage(
                f"the module {room!r} is not Nightshift's: Python finds {origin or 'none'}, expected {ours / room}",
                remedy="install Nightshift in an environment of its own (make setup), with no PYTHONPATH",
            )
