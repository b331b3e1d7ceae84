"""What a campaign runs when nobody says otherwise: the profiles ``quick`` and ``full``, or a TOML file of yours."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from durabench import outside

SHIPPED = ("quick", "full")


class ProfileError(ValueError):
    """A profile that does not exist or does not say what it must; the message names every mistake."""


class Controls(BaseModel):
    """Settings whose outcome is known beforehand, as ``backend:setting``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    negative: str
    positive: str
    detector: str


class PowerControls(BaseModel):
    """Settings whose outcome under power cuts is known: one that keeps everything, one that loses."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    negative: str
    positive: str


class Power(BaseModel):
    """The pass on a machine that can be reset: recordings of so many puts, and crash states of each recording.

    ``budget_s`` (not counting preparation), or ``trials`` crash states per cell over at least ``recordings``
    recordings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    faults: Annotated[list[str], Field(min_length=1)]
    backends: Annotated[list[str], Field(min_length=1)]
    filesystems: Annotated[list[str], Field(min_length=1)]
    controls: PowerControls
    budget_s: Annotated[float, Field(gt=0)] | None = None
    trials: Annotated[int, Field(ge=1)] | None = None
    recordings: Annotated[int, Field(ge=1)] = 8
    puts: Annotated[int, Field(ge=2)] = 12
    states: Annotated[int, Field(ge=1)] = 8
    server_states: Annotated[int, Field(ge=1)] = 4
    recordings_mib: Annotated[float, Field(ge=0)] = 256

    @model_validator(mode="after")
    def _budget_or_trials(self) -> Power:
        if (self.budget_s is None) == (self.trials is None):
            message = "give either budget_s or trials"
            raise ValueError(message)
        return self


class Profile(BaseModel):
    """A time budget (``budget_s``) or a number of trials per cell (``trials``; ``dear_trials`` for slow settings)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    backends: Annotated[list[str], Field(min_length=1)]
    faults: Annotated[list[str], Field(min_length=1)]
    controls: Controls
    power: Power
    workload: str = "agent"
    writers: Annotated[int, Field(ge=1, le=64)] = 1
    budget_s: Annotated[float, Field(gt=0)] | None = None
    trials: Annotated[int, Field(ge=1)] | None = None
    dear_trials: Annotated[int, Field(ge=1)] | None = None
    dear_every_rounds: Annotated[int, Field(ge=1)] = 1
    round_kills: Annotated[int, Field(ge=1)] = 1
    """Kills of a cell in one round of a budget: more of them share one bring-up."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 2
    puts: Annotated[int, Field(ge=1)] = 100
    write_s: Annotated[float, Field(gt=0)] = 0.5

    @model_validator(mode="after")
    def _budget_or_trials(self) -> Profile:
        if (self.budget_s is None) == (self.trials is None):
            message = "give either budget_s or trials"
            raise ValueError(message)
        return self


def load(name: str) -> Profile:
    """The shipped profile of that name, or the TOML file. ProfileError."""
    try:
        if name in SHIPPED:
            found = tomllib.loads((files("durabench") / "profiles" / f"{name}.toml").read_text())
        else:
            found = outside.toml(Path(name))
        return Profile.model_validate(found)
    except FileNotFoundError:
        message = f"no profile {name!r}; there are {', '.join(SHIPPED)}, or give a TOML file"
        raise ProfileError(message) from None
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']}" for e in error.errors())
        message = f"profile {name}: {mistakes}"
        raise ProfileError(message) from None
    except (OSError, ValueError) as error:
        message = f"profile {name}: {error}"
        raise ProfileError(message) from error
