"""Agents that change their process, written as users write them, are found to share it."""

import contextlib
import decimal
import io
import logging
import os
import random
import socket
import sys
import warnings
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects

environ = os.environ


def changes_the_folder(task: Any) -> None:
    os.chdir(task)


def changes_the_folder_for_a_while(task: Any) -> None:
    with contextlib.chdir(task):
        pass


def imports_what_changes_the_folder(task: Any) -> None:
    from os import chdir as go

    go(task)


def captures_what_is_printed(task: Any) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        sys.stdout.write(task)
    return printed.getvalue()


def captures_warnings(task: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn(task, stacklevel=1)
    return caught


def captures_what_is_logged(task: Any) -> None:
    logger = logging.getLogger("agent")
    handler = logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    logger.removeHandler(handler)


def draws_from_a_seed(task: Any) -> int:
    random.seed(task)
    return random.randint(0, 9)


def draws_an_array_from_a_seed(task: Any) -> Any:
    np.random.seed(task)
    return np.random.rand()


def replaces_a_function(task: Any) -> None:
    with patch("os.getcwd"):
        pass


def updates_the_environment(task: Any) -> None:
    os.environ.update(MODEL=task)


def updates_what_is_imported_of_it(task: Any) -> None:
    environ.setdefault("MODEL", task)


def draws_a_figure(task: Any) -> None:
    import matplotlib.pyplot as plt

    plt.close(task)


def limits_requests(task: Any) -> None:
    socket.setdefaulttimeout(task)


def uses_the_process_as_it_is(task: Any) -> Any:
    logging.getLogger("agent").info("%s in %s", task, os.getcwd())
    warnings.warn(os.environ.get("MODEL", ""), stacklevel=1)
    with contextlib.suppress(ValueError), decimal.localcontext() as context:
        context.prec = 5
    made: dict[str, Any] = {}
    made.update(task=os.path.join("a", "b"), drawn=random.Random(4).random(), array=np.zeros(3))
    return made


CHANGING: list[tuple[Any, str]] = [
    (changes_the_folder, "os.chdir(), which changes_the_folder() of test_process_state.py calls: it changes the whole"),
    (changes_the_folder_for_a_while, "contextlib.chdir()"),
    (imports_what_changes_the_folder, "os.chdir()"),
    (captures_what_is_printed, "contextlib.redirect_stdout()"),
    (captures_warnings, "warnings.catch_warnings()"),
    (captures_what_is_logged, "a logger's addHandler()"),
    (draws_from_a_seed, "random.seed()"),
    (draws_an_array_from_a_seed, "numpy.random.seed()"),
    (replaces_a_function, "unittest.mock.patch()"),
    (updates_the_environment, "os.environ.update()"),
    (updates_what_is_imported_of_it, "os.environ.setdefault()"),
    (draws_a_figure, "matplotlib.pyplot.*()"),
    (limits_requests, "socket.setdefaulttimeout()"),
]


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.parametrize(("agent", "name"), CHANGING)
def test_what_changes_the_process_is_named_with_what_calls_it(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)


def test_what_uses_the_process_as_it_is_may_share_it() -> None:
    assert found(uses_the_process_as_it_is) == []
