"""Secret variables: environment variables that contain secrets, by their names or as URLs with a password."""

import re
from collections.abc import Mapping, Sequence

from leyden.core.masking.shapes import PASSWORD_IN_URL

OWN_TOKENS = frozenset(
    {
        "LEYDEN_CAPTURE_TOKEN",
        "LEYDEN_CONSOLE_TOKEN",
        "LEYDEN_RUN_TOKEN",
        "LEYDEN_SERVER_TOKEN",
        "LEYDEN_SERVE_KEY",
        "LEYDEN_STORE",
        "LEYDEN_STORE_TOKEN",
        "LEYDEN_VERL_TOKEN",
    }
)
"""Variables with Leyden's own tokens; with such a token, a program can read or write data of other attempts, or call a
server of Leyden."""

PROVIDER_KEYS = re.compile(
    r"""
    (AI21 | ANTHROPIC | ANTHROPIC_FOUNDRY | ANTHROPIC_IDENTITY | AZURE | AZURE_OPENAI | CEREBRAS | CO | COHERE |
     DASHSCOPE | DATABRICKS | DEEPINFRA | DEEPSEEK |
     FIREWORKS | FIREWORKS_AI | GEMINI | GOOGLE | GOOGLE_GENERATIVE_AI | GROQ | MINIMAX | MISTRAL | MOONSHOT | NVIDIA |
     NVIDIA_NIM | OPENAI | OPENROUTER | PERPLEXITY | PERPLEXITYAI | REPLICATE | SAMBANOVA | TOGETHER | TOGETHERAI |
     TOGETHER_AI | WATSONX | XAI | ZAI | ZHIPUAI)
    _(API_KEY | APIKEY | API_TOKEN | ADMIN_KEY | AD_TOKEN | AUTH_TOKEN | TOKEN)
    | AWS_BEARER_TOKEN_BEDROCK
    | CLAUDE_CODE_OAUTH_TOKEN
    | OPENAI_API_TYPE | CLAUDE_CODE_USE_(BEDROCK | FOUNDRY | VERTEX)  # lead a client past its base URL
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Variables that never reach another program, because they give access to a provider."""
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


def withheld(base: Mapping[str, str], given: Sequence[str] = ()) -> frozenset[str]:
    """Return the names of variables in `base` that a command does not receive.

    These are secrets by their name, and URLs with a password.
    """
    return frozenset(name for name, value in base.items() if name not in given and _is_secret(name, value))


def _is_secret(name: str, value: str) -> bool:
    if PROVIDER_KEYS.fullmatch(name) or is_secret_name(name):
        return True
    return PASSWORD_IN_URL.match(value) is not None and not name.lower().endswith("_proxy")
