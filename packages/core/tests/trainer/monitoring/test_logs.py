import logging
from collections.abc import Generator

import pytest
from planted import random_of

from leyden.core.masking import remember_secret
from leyden.core.trainer.monitoring.logs import LOGGER, setup_logging

INNER = "leyden.core.gateway.tested_here"


@pytest.fixture(autouse=True)
def restored() -> Generator[None]:
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.level, logger.propagate = before[:2]
    logger.handlers[:] = before[2]
    logging.getLogger(INNER).setLevel(logging.NOTSET)


def test_logs_are_written_once_with_secrets_masked(capsys: pytest.CaptureFixture[str]) -> None:
    secret = random_of("a secret in a log")
    remember_secret(secret)
    setup_logging()
    setup_logging("INFO")
    logging.getLogger("leyden.core.x").info("key %s", secret)
    logging.getLogger("leyden.core.x").debug("unseen")
    written = capsys.readouterr().err
    assert written.count("[INFO]") == 1 and "leyden.core.x) key" in written
    assert secret not in written and "unseen" not in written


def test_levels_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(logging.WARNING, submodule_levels={INNER: "DEBUG"})
    logging.getLogger(INNER).debug("inner")
    logging.getLogger("leyden.core.x").info("outer")
    written = capsys.readouterr().err
    assert "inner" in written and "outer" not in written
