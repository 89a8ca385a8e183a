"""The library Optuna: whether it is installed, how it is kept quiet, and a domain as it describes one."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from leyden.core.errors import UsageError
from leyden.core.tuning.space import Choices, Domain

EXTRA = "pip install 'leyden-core[tune]'"


def is_installed() -> bool:
    """Whether Optuna is installed."""
    return find_spec("optuna") is not None


def check_installed() -> None:
    """Raise UsageError where Optuna is not installed."""
    if not is_installed():
        raise UsageError(f"leyden tune needs the library optuna, which is not installed: {EXTRA}")


def library() -> Any:
    """Import Optuna, which takes about a second, and return it."""
    import optuna

    return optuna


@contextmanager
def quiet() -> Generator[Any]:
    """Context manager: Optuna, without its log lines and its warnings about parts that may change."""
    optuna = library()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def distribution(domain: Domain) -> Any:
    """Return a domain as Optuna describes it."""
    optuna = library()
    if isinstance(domain, Choices):
        return optuna.distributions.CategoricalDistribution(list(domain.settings))
    if domain.whole:
        return optuna.distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)
