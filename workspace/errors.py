"""The errors that reach a person, one type per exit code of the command line.

    NightshiftError                 never raised itself
    ├── UserError         exit 2    a command, a file or a value given to us is wrong
    ├── SurroundingsError exit 3    Docker, disk, ledger, model package, endpoint …
    └── Interrupted       exit 130  Ctrl-C, or a question answered "no"

Every message says what is wrong and what to do about it; programmers' mistakes stay plain Python errors.
"""

from __future__ import annotations


class NightshiftError(Exception):
    """Base of everything that the command line turns into one line and an exit code."""

    exit_code = 3

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}\n  remedy: {remedy}" if remedy else message)


class UserError(NightshiftError):
    """Something that was typed or written in a file is wrong.

    ``field`` names the option, key or path; ``value`` is what was found there; ``allowed`` what would have been right.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, field: str = "", value: object = None, allowed: str = "", remedy: str = ""
    ) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        parts = [f"{field}: {message}" if field else message]
        if value is not None:
            parts.append(f"found {value!r}")
        if allowed:
            parts.append(f"allowed: {allowed}")
        super().__init__("; ".join(parts), remedy=remedy)


class SurroundingsError(NightshiftError):
    """The machine around us is not as needed; ``remedy`` is the one thing to do."""

    exit_code = 3


class Interrupted(NightshiftError):
    """A person stopped us; what was finished is kept and the next run resumes."""

    exit_code = 130
