"""A scripted model on loopback that speaks the providers' protocols: no real model is behind it."""

from tenuto.testing.models.books import Billed
from tenuto.testing.models.gates import Gate
from tenuto.testing.models.server import Model
from tenuto.testing.models.steps import (
    Answer,
    Call,
    Cut,
    Fail,
    Garbage,
    Overflow,
    Result,
    Say,
    Seen,
    Silence,
    Slow,
    Step,
    Tool,
)

__all__ = [
    "Answer",
    "Billed",
    "Call",
    "Cut",
    "Fail",
    "Garbage",
    "Gate",
    "Model",
    "Overflow",
    "Result",
    "Say",
    "Seen",
    "Silence",
    "Slow",
    "Step",
    "Tool",
]
