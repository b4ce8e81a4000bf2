"""Durations as people type them: ``15m``, ``900``, ``1h30m``."""

from __future__ import annotations

import re

from workspace.errors import UserError

UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(text: str, field: str) -> float:
    """Seconds of ``90``, ``90s``, ``15m``, ``1h``, ``1h30m``; UserError naming ``field`` for anything else."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms]?)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise UserError("not a duration", field=field, value=text, allowed="e.g. 900, 15m, 1h30m")
    total = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if total <= 0:
        raise UserError("must be more than zero", field=field, value=text, allowed="e.g. 900, 15m, 1h30m")
    return total
