"""A pytest plugin: a client reads one certificate authority instead of all of them.

Each new HTTP client makes an SSL context, and reading the hundred and more authorities of the web takes it 40 ms,
longer than most tests. The servers of the tests speak plain HTTP, or show a certificate that the test itself hands to
its client. What really goes to a package index gets `trusted_authorities`.
"""

import os
import tempfile
from pathlib import Path

import certifi
import pytest

VARIABLE = "SSL_CERT_FILE"
"""What OpenSSL reads the authorities from, and so httpx, aiohttp and urllib."""
MACHINES = "LEYDEN_TEST_AUTHORITIES"
"""Environment variable for the file that the machine itself would read."""
END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="session")
def trusted_authorities() -> dict[str, str]:
    """Variables of a command that trusts whom this machine trusts."""
    return {VARIABLE: os.environ[MACHINES]}


class FewAuthorities:
    """Names a file with one authority to this process and all that it starts."""

    def __init__(self) -> None:
        first = Path(certifi.where()).read_text().partition(END)
        with tempfile.NamedTemporaryFile("w", prefix="leyden-authority-", suffix=".pem", delete=False) as file:
            file.write(first[0] + first[1])
        self._file = Path(file.name)
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = file.name
        os.environ.setdefault(MACHINES, self._before or certifi.where())  # xdist's processes inherit both

    def pytest_unconfigure(self) -> None:
        """Take the file away."""
        self._file.unlink(missing_ok=True)
        before = self._before
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def pytest_configure(config: pytest.Config) -> None:
    """Begin before any test file is imported."""
    config.pluginmanager.register(FewAuthorities(), "few authorities")
