"""Models of structured output as agents write them, and what runs an agent for each of them on random policies.

All values of the models are bounded: a random policy would not end a text of any length.
"""

import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field
from random_policy import calls_of, random_policy

from leyden.core.data import semconv


class Colour(Enum):
    """A colour."""

    RED = "red"
    BLUE = "dark blue"


class Point(BaseModel):
    x: int = Field(ge=-20, le=1000)
    y: int = Field(ge=0, le=99)


class Person(BaseModel):
    """Information about a person, "quoted" and naïve."""

    name: str = Field(description="The person's name", max_length=12)
    age: int = Field(description="The person's age in years", ge=0, le=130)
    nickname: Annotated[str, Field(max_length=8)] | None = Field(description="If known")


class Plan(BaseModel):
    kind: Literal["walk", "drive", 'it\'s "odd"']
    colour: Colour
    at: Point
    stops: list[Point] = Field(max_length=3)
    people: list[Person] = Field(min_length=1, max_length=2)
    done: bool
    priority: Literal[1, 2, 3]
    then: Point | None


class Defaults(BaseModel):
    """A model with defaults."""

    title: str = Field(default="untitled", max_length=10)
    level: int = Field(default=3, ge=1, le=5)
    colour: Colour = Colour.RED
    at: Point | None = None
    tags: list[Annotated[str, Field(max_length=6)]] = Field(default_factory=list, max_length=3)


class Step(BaseModel):
    explanation: str = Field(max_length=10)
    output: str = Field(max_length=10)


class Solution(BaseModel):
    steps: list[Step] = Field(max_length=3)
    final_answer: str = Field(max_length=10)


MODELS: dict[str, type[BaseModel]] = {model.__name__: model for model in (Person, Plan, Defaults, Solution)}
SEEDS = 4
"""Number of policies, each with weights of its own."""
MANY = int(os.environ.get("LEYDEN_STRUCTURED_RUNS", "40"))
"""Number of runs in the campaigns; 1,000 take half an hour."""
_CAMPAIGN = [pytest.mark.long, pytest.mark.campaign, pytest.mark.timeout(1200)]
COUNTS = pytest.mark.parametrize("count", [8, pytest.param(MANY, marks=_CAMPAIGN)])
"""Numbers of runs: a few in the fast tests."""

Option = TypeVar("Option")


def model_of(task: Any) -> type[BaseModel]:
    """Return the model of a task's answer."""
    return MODELS[task["model"]]


def option_of(task: Any, options: Sequence[Option]) -> Option:
    """Return one of several ways to run an agent: each is taken in turn, with all models."""
    number: int = task["number"]
    return options[number // len(MODELS) % len(options)]


def instance(task: Any, result: Any) -> float:
    """Reward an answer that is an instance of the task's model; raise AssertionError for any other."""
    assert isinstance(result, model_of(task)), result
    return 1.0


async def check_runs(folder: Path, agent: Any, count: int, score: Callable[[Any, Any], float] = instance) -> None:
    """Run `agent` `count` times, for all models in turn; assert that each run is scored, and its calls recorded."""
    seeds = SEEDS if count > 100 else 1
    names = list(MODELS)
    tasks = [
        {"question": f"question {number}", "model": names[number % len(names)], "number": number}
        for number in range(count // seeds)
    ]
    for seed in range(seeds):
        with random_policy(folder / str(seed), seed) as policy:
            runs = await policy.runs(agent, score, tasks)
        failed = [rollout.attempt.metadata.get("error") for rollout, _ in runs if rollout.status != "succeeded"]
        assert not failed, (len(failed), failed[:3])
        for _, spans in runs:
            calls = calls_of(spans)
            assert calls and all(call.attributes[semconv.RESPONSE_IDS] for call in calls)
