"""Names of spans that `agentlightning.semconv` has, with the values that Leyden's stores have."""

from leyden.core.agent_lightning.replaced import lookup
from leyden.core.agent_lightning.types import RewardPydanticModel
from leyden.core.data import semconv

AGL_ANNOTATION = semconv.ANNOTATION
AGL_MESSAGE = semconv.MESSAGE
AGL_OBJECT = semconv.OBJECT
AGL_EXCEPTION = semconv.EXCEPTION
AGL_REWARD = semconv.REWARD
AGL_OPERATION = semconv.OPERATION_SPAN

__all__ = [
    "AGL_ANNOTATION",
    "AGL_EXCEPTION",
    "AGL_MESSAGE",
    "AGL_OBJECT",
    "AGL_OPERATION",
    "AGL_REWARD",
    "RewardPydanticModel",
]

__getattr__ = lookup("semconv")
