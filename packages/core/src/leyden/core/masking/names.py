"""Secret names: recognizes environment variables that contain secrets by their names."""

import re
from collections.abc import Mapping

OWN_TOKENS = frozenset({"LEYDEN_CAPTURE_TOKEN", "LEYDEN_RUN_TOKEN", "LEYDEN_STORE_TOKEN", "LEYDEN_VERL_TOKEN"})
"""Variables with Leyden's own tokens; with such a token, a program can read or write data of other attempts."""

_SECRET_NAME = re.compile(
    r"""
    .*(SECRET | PASSWORD | PASSWD | PASSPHRASE | CREDENTIAL).*
    | .*(API_?KEY | TOKEN)(_ID | _\d+ | _B64 | _BASE64 | _JSON | _PEM)?
    | (.*_)?(KEY | PASS | AUTH | COOKIE | DSN | JWT)(_ID | _\d+ | _B64 | _BASE64 | _JSON | _PEM)?
    | .+_PWD  # PWD itself is the current folder
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable indicates a secret, such as `GITHUB_TOKEN` or `AWS_ACCESS_KEY_ID`."""
    return _SECRET_NAME.fullmatch(name) is not None


def without_own_tokens(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without Leyden's own tokens."""
    return {name: value for name, value in variables.items() if name not in OWN_TOKENS}
