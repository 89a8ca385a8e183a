"""These tests need a GPU that PyTorch can use, and fail without one: `make test-gpu` runs them."""

from collections.abc import Generator

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> Generator[None]:
    """Fail without a GPU, and return what a test has taken of its memory."""
    if not torch.cuda.is_available():
        pytest.fail("PyTorch finds no GPU here, so nothing was tested")
    yield
    torch.cuda.empty_cache()
