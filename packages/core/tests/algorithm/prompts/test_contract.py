"""GEPA and APO keep the contract of algorithms that train prompts."""

import pytest

from leyden.core.testing.prompts.contract import PromptAlgorithmContract

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class TestGEPA(PromptAlgorithmContract):
    algorithm = "gepa"


class TestAPO(PromptAlgorithmContract):
    algorithm = "apo"
    settings = ("beam_width=2", "branch_factor=2", "minibatch=2")
