"""Known findings: settings that are broken, why that is known, so that a gate fails for what is new only.

A file of them::

    [[expected]]
    setting = "backend:setting"
    fault = "cut-power"
    reason = "the vendor's issue, or the sentence that explains it"
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from durabench import outside

_ROOM = Path(__file__).resolve().parents[2]
OWN = _ROOM / "expected.toml" if (_ROOM.parent / "pyproject.toml").exists() else _ROOM / "not-a-checkout"
"""The project's own, used by default in a checkout; an installed wheel has none."""


class Expectation(BaseModel):
    """One known finding."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    setting: str
    fault: str
    reason: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    expected: list[Expectation] = []


class ExpectationsError(ValueError):
    """The file is not one of expectations; the message names every mistake (exit 2)."""


def load_expectations(path: Path | None = None) -> list[Expectation]:
    """The expectations of a file; without one the project's own, none where there are none. ExpectationsError."""
    if path is None and not OWN.exists():
        return []
    source = path or OWN
    try:
        return _File.model_validate(outside.toml(source)).expected
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        message = f"{source}: {mistakes}; each [[expected]] has setting, fault and reason"
        raise ExpectationsError(message) from None
    except (OSError, ValueError) as error:
        message = f"{source} cannot be read: {error}; each [[expected]] has setting, fault and reason"
        raise ExpectationsError(message) from None
