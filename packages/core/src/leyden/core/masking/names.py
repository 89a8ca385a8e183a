"""Names of environment variables that hold secrets."""

import re
from collections.abc import Mapping

OWN_TOKENS = frozenset({"LEYDEN_CAPTURE_TOKEN", "LEYDEN_RUN_TOKEN", "LEYDEN_STORE_TOKEN", "LEYDEN_VERL_TOKEN"})
"""Tokens of Leyden's own: with one of them a program can read or write what belongs to other attempts."""

_SAYS_SECRET = re.compile(
    r"""
    .*(SECRET | PASSWORD | PASSWD | PASSPHRASE | CREDENTIAL).*
    | .*(API_?KEY | TOKEN)(_ID | _\d+ | _B64 | _BASE64 | _JSON | _PEM)?
    | (.*_)?(KEY | PASS | AUTH | COOKIE | DSN | JWT)(_ID | _\d+ | _B64 | _BASE64 | _JSON | _PEM)?
    | .+_PWD  # PWD itself is the current folder
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def says_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as its name says: `GITHUB_TOKEN`, `AWS_ACCESS_KEY_ID`."""
    return _SAYS_SECRET.fullmatch(name) is not None


def without_own_tokens(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it is without Leyden's own tokens."""
    return {name: value for name, value in variables.items() if name not in OWN_TOKENS}
