"""Huge pages: large tensors get them in a process that has loaded a policy, and the environment stays as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leyden.core.policy.huge_pages import VARIABLE

KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
POLICY = Path(__file__).parents[4] / "examples/calculator_langgraph/policy"
CODE = f"""
import os, re, sys
from pathlib import Path
import torch
from leyden.core.policy.model import PolicyModel

before = os.environ.get({VARIABLE!r})
PolicyModel.load({str(POLICY)!r})
assert os.environ.get({VARIABLE!r}) == before
large = torch.ones(32 * 2**20)
print(re.search(r"AnonHugePages: +(\\d+)", Path("/proc/self/smaps_rollup").read_text()).group(1))
"""


def kibibytes(**variables: str) -> int:
    """Huge pages of a process that has loaded a policy, and then made a tensor of 128 MiB."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.integration
@pytest.mark.skipif(not KERNEL.exists() or "[never]" in KERNEL.read_text(), reason="this kernel has no huge pages")
def test_large_tensors_get_them_unless_the_environment_decides_otherwise() -> None:
    assert kibibytes() >= 64 * 1024
    if "[always]" not in KERNEL.read_text():
        assert kibibytes(**{VARIABLE: "0"}) < 8 * 1024
