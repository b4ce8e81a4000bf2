"""``nightshift.toml``: every setting of a lab, typed; unknown keys and wrong values are refused by name.

``[profiles.NAME]`` holds the same tables again with other values; ``--profile NAME`` lays them over the rest, and
``NAME+OTHER`` one after the other.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from workspace.errors import SurroundingsError, UserError
from workspace.sandbox_settings import SandboxSettings

FILE = "nightshift.toml"
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LedgerSettings(Table):
    url: str | None = None  # any SQLAlchemy URL; none = SQLite in .nightshift/ledger.db


class ModelSettings(Table):
    subject: Literal["embedded"] = "embedded"  # where checkpoint number zero comes from
    threads: int | None = Field(default=None, ge=1)  # none = all cores


class BudgetSettings(Table):
    """Caps of one night; none = counted, not limited."""

    wall_s: float = Field(default=900, gt=0)
    tokens: float | None = Field(default=2_000_000, gt=0)
    usd: float | None = Field(default=0.0, ge=0)
    accelerator_s: float | None = Field(default=0.0, ge=0)


class ScheduleSettings(Table):
    cron: str = "30 1 * * *"
    timezone: str = "UTC"


class FamilySettings(Table):
    """One reasoning-gym family (or a variant of one) that the survey looks at."""

    dataset: str
    config: dict[str, Any] = {}
    title: str = ""
    kind: str = "puzzle"
    max_new_tokens: int = Field(default=16, ge=1, le=512)


class SurveySettings(Table):
    items: int = Field(default=32, ge=4)  # of each family
    families: dict[Name, FamilySettings] = {}
    exclude: list[str] = []
    take_floor: bool = False  # a walk with few items may take a family of which none was right


class KernelSettings(Table):
    tasks: list[str] = ["rmsnorm", "softmax", "swiglu"]
    candidates: int = Field(default=8, ge=1)  # of each task, each night
    targets: list[Literal["sm_80", "sm_90"]] = ["sm_80", "sm_90"]
    min_gain: float = Field(default=0.03, ge=0.0, lt=1.0)  # predicted time must fall by this share
    judge: Literal["full", "smoke"] = "full"


class DataSettings(Table):
    recipe: Name = "posttrain"  # recipes/NAME.toml: sizes of the data set, and how a successor is trained on it
    distinct_factor: int = Field(default=20, ge=1)  # a family needs so many times the items that are drawn


class JudgeSettings(Table):
    alpha: float = Field(default=0.05, gt=0, lt=1)
    target_items: int = Field(default=160, ge=8)
    guard_items: int = Field(default=500, ge=8)  # pooled over kinds
    margin: float = Field(default=0.05, gt=0, lt=1)
    prose_margin: float = Field(default=0.05, gt=0)  # of log-perplexity, see docs/gate.md


class ServeSettings(Table):
    host: str = "127.0.0.1"
    port: int = Field(default=8484, ge=1, le=65535)


class Settings(Table):
    """The whole file."""

    name: str = "lab"
    lab_id: str = Field(pattern=r"^[0-9a-f]{16}$")  # names this lab's secret and its containers
    ledger: LedgerSettings = LedgerSettings()
    model: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    sandbox: SandboxSettings = SandboxSettings()
    survey: SurveySettings = SurveySettings()
    kernels: KernelSettings = KernelSettings()
    data: DataSettings = DataSettings()
    judge: JudgeSettings = JudgeSettings()
    serve: ServeSettings = ServeSettings()
    profiles: dict[Name, dict[str, Any]] = {}

    @field_validator("profiles")
    @classmethod
    def _profiles_do_not_nest(cls, profiles: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, profile in profiles.items():
            if wrong := {"profiles", "lab_id", "name"} & set(profile):
                raise ValueError(f"[profiles.{name}] may not set {', '.join(sorted(wrong))}")
        return profiles


def load_settings(path: Path, profile: str = "default", text: str | None = None) -> Settings:
    """Read and validate; ``text`` replaces the file's content (the version of a commit).

    UserError names file, key, value and what is allowed; SurroundingsError if the file cannot be read.
    """
    if text is None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SurroundingsError(f"{path} cannot be read: {error}", remedy="restore it from git") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not valid TOML: {error}", field=str(path), remedy="mend that line") from None
    settings = base = _validated(values, path)
    for name in profile.split("+"):
        if name == "default":
            continue
        if name not in base.profiles:
            raise UserError(
                "no such profile", field="--profile", value=name, allowed=", ".join(["default", *base.profiles])
            )
        values = _overlay(values, base.profiles[name])
        settings = _validated(values, path, f"profiles.{name}")
    return settings


def _overlay(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in over.items():
        old = merged.get(key)
        # families are replaced as a whole: a profile with fewer of them means fewer of them
        nested = isinstance(value, dict) and isinstance(old, dict) and key not in ("families", "config")
        merged[key] = _overlay(old, value) if nested and isinstance(old, dict) else value
    return merged


def _validated(values: dict[str, Any], path: Path, where: str = "") -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        unknown = first["type"] == "extra_forbidden"
        raise UserError(
            "unknown key" if unknown else str(first["msg"]),
            field=f"{path.name}: {key}" + (f" (with {where})" if where else ""),
            value=first.get("input"),
            allowed=", ".join(_known_keys(first["loc"])) if unknown else "",
        ) from None


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The keys of the table that an unknown key was found in."""
    table: Any = Settings
    for part in loc[:-1]:
        field = table.model_fields.get(str(part)) if isinstance(table, type) and issubclass(table, BaseModel) else None
        if field is None:
            return sorted(FamilySettings.model_fields) if "families" in loc else []
        table = field.annotation
    return sorted(table.model_fields) if isinstance(table, type) and issubclass(table, BaseModel) else []
