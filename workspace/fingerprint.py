"""What machine and packages an experiment ran on: every result carries this."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "transformers", "peft", "xgrammar", "reasoning-gym", "prefect", "sqlmodel", "numpy")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _accelerator() -> str | None:
    driver = Path("/proc/driver/nvidia/version")
    return driver.read_text().splitlines()[0] if driver.exists() else None


@functools.cache
def fingerprint() -> dict[str, Any]:
    """Machine, kernel, driver and package versions (no host name: it may be private)."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "accelerator": _accelerator(),
        "packages": {name: _version(name) for name in PACKAGES},
    }
