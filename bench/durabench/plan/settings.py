"""What a plan compares and for how long: ``profiles/plan.toml``."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Effort(BaseModel):
    """How much is measured; every key is described in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sizes: str
    puts: Annotated[int, Field(ge=1)]
    put_s: Annotated[float, Field(gt=0)]
    rounds: Annotated[int, Field(ge=1)]
    total_s: Annotated[float, Field(gt=0)]
    cost_s: Annotated[float, Field(gt=0)]
    coarse_s: Annotated[float, Field(gt=0)]
    fine_s: Annotated[float, Field(gt=0)]
    compressible: bool
    traces: list[str]
    steps: Annotated[int, Field(ge=2)]
    headline: list[str]
    steps_s: Annotated[float, Field(gt=0)]
    faults_s: Annotated[float, Field(gt=0)]
    fault_trials: Annotated[int, Field(ge=0)]


class PlanProfile(BaseModel):
    """``kinds``: of each list of settings the first that meets the goal is compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kinds: list[Annotated[list[str], Field(min_length=1)]]
    default: Effort
    quick: Effort


def load() -> PlanProfile:
    """The shipped one."""
    text = (files("durabench") / "profiles" / "plan.toml").read_text()
    return PlanProfile.model_validate(tomllib.loads(text))
