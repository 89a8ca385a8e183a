"""`AdapterContract`: what every adapter promises, as a test class to subclass. An implementation overrides no test.

Its agents run unchanged against the real gateway and a scripted engine, and whatever an adapter records is compared
with the engine's own log:

    class TestMyAdapterContract(AdapterContract):
        package = "leyden.mine"
        framework = ("mine",)

        def make_adapter(self) -> MyAdapter:
            return MyAdapter()

and the other hooks of `AdapterTests`. Agents without a framework have no structure to record; what they are promised is
`PlainContract`, and `ForeignContract` if they are processes of their own. `ReplacedPromptsContract` holds an agent with
new prompts against the same agent with its own. Needs pytest with pytest-asyncio in auto
mode. Knows no framework.
"""

from leyden.core.testing.adapter_contract.captured import CaptureTests
from leyden.core.testing.adapter_contract.concurrency import ConcurrencyTests
from leyden.core.testing.adapter_contract.plain import PlainTests
from leyden.core.testing.adapter_contract.prompts import PromptTests, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import API_KEY
from leyden.core.testing.adapter_contract.structure import StructureTests
from leyden.core.testing.adapter_contract.transparency import (
    InProcessTests,
    InstrumentingTests,
    RecognisingTests,
    TransparencyTests,
)

__all__ = ["API_KEY", "AdapterContract", "ForeignContract", "PlainContract", "ReplacedPromptsContract"]


class AdapterContract(
    TransparencyTests,
    InProcessTests,
    RecognisingTests,
    StructureTests,
    CaptureTests,
    ConcurrencyTests,
    InstrumentingTests,
    PromptTests,
):
    """Every promise."""


class ForeignContract(TransparencyTests, PlainTests):
    """Every promise that needs neither structure nor the agent in our own process."""


class PlainContract(ForeignContract, InProcessTests):
    """Every promise that needs no structure."""
