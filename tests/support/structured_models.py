"""Models of structured output as agents write them, all of whose values are bounded."""

from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field


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


MODELS: tuple[type[BaseModel], ...] = (Person, Plan, Defaults, Solution)
