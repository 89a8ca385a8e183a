"""Shapes of secrets: regular expressions that recognize secrets by their form, and the replacement for each.

Every pattern takes linear time: repetitions are bounded, or can start at only one position of a run of characters.

A text may have been escaped before: by Python's `repr`, as JSON, as JSON in JSON, or in a URL. Then the letter at the
end of an escape does not belong to the next word, and quotes have backslashes before them.
"""

import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

MASK = "***"

_ESCAPE = r"(?<=\\[abfnrtv])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
"""Position after an escape, such as `\\n` (a line end in `repr`) or `%3D` (`=` in a URL)."""
_START = rf"(?:(?<![\w-])|{_ESCAPE})"
"""Start of a run of word characters or hyphens; so each run is scanned once."""
_WORD = rf"(?:\b|{_ESCAPE})"
_QUOTE = r"(?:\\{0,8}[\"'])?"
_IS = rf"(?:{_QUOTE}\s{{0,4}}(?:[:=]|%3[AD])|\\{{0,8}}[\"'],)\s{{0,4}}(?:b?\\{{0,8}}[\"'])?"
"""Text between a header's name and its value: in a line, in a mapping, or in a list of pairs."""
_DIGIT = r"(?=[A-Za-z_-]*\d)"
_RANDOM = re.compile(r"(?=(?:\D*\d){2})(?=[^A-Za-z]*[A-Za-z])")
_KEYS = re.compile(
    rf"""{_START}(
      (?:sk|pk|rk)[-_](?={_DIGIT}[\w-]{{16}})                                    # OpenAI, Anthropic, Stripe and others
    | (?:hf_|gsk_|xai[-_]|nvapi-|pplx-|tvly-|r8_|npm_|pypi-|whsec_|lsv2_|gl(?:pat|dt|rt|ptt)-|gh[pousr]_|github_pat_)
      (?={_DIGIT}[\w-]{{16}})
    | AIza(?=[\w-]{{16}}) | GOCSPX-(?=[\w-]{{16}})                               # Google
    | xox[abeoprs]-(?={_DIGIT}[\w-]{{10}}) | xapp-(?={_DIGIT}[\w-]{{10}})        # Slack
    )[\w-]+""",
    re.VERBOSE,
)
_AWS = re.compile(rf"(?:(?<![A-Za-z0-9])|{_ESCAPE})(A[KS]IA)[A-Z0-9]{{16}}(?![A-Za-z0-9])")
_GOOGLE_OAUTH = re.compile(rf"{_START}(ya29\.)[\w-]{{20,}}")
_JWT = re.compile(rf"{_START}eyJ[\w-]{{8,}}\.[\w-]{{8,}}\.[\w-]*")
_GAP = r"(?:\s|\\{1,8}[nr])"
_FIELD = (
    rf"{_GAP}{{1,9}}(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [^\s\\]{{0,80}}(?: [^\s\\]{{0,80}}){{0,9}}"
)
_BLOCK = re.compile(
    rf"(-----BEGIN [A-Z0-9 ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----)(?:{_FIELD}){{0,6}}"
    rf"(?:{_GAP}+[A-Za-z0-9+/=]{{16,}})+(?:{_GAP}+[A-Za-z0-9+/=]+(?={_GAP}{{0,4}}-----END))?"
)
_USERINFO_IN_URL = re.compile(
    r"(\b[a-z][a-z0-9+.-]{0,30}%3A%2F%2F)(?:[^\s/?#@%\"'<>]|%(?!2F|3F|23|40)){1,400}%40", re.IGNORECASE
)
"""User and password of a URL that is escaped inside another URL."""
_USERINFO = re.compile(rf"({_WORD}[a-z][a-z0-9+.-]{{0,30}}://)(?![^\s/?#@]*\*\*\*@)[^\s/?#\"'<>]+@", re.IGNORECASE)
PASSWORD_IN_URL = re.compile(r"(\b[a-z][\w+.-]{0,30}://[^\s:/@]*):[^\s@/]+@", re.IGNORECASE)
"""User and password of a URL; the group has the scheme and the user name."""
_SECRET_OPTIONS = (
    r"(?:x-amz-|x-goog-)?(?:api[-_]?key|key|(?:access|auth|refresh|id|security)?[-_]?token|secret|client[-_]secret"
    r"|(?:ssl)?passw(?:or)?d|sig|signature|credential)"
)
SECRET_OPTION_OF_URL = re.compile(r"([?&][^=&#]*(?:password|passwd|secret|token)[^=&#]*=)[^&#]*", re.IGNORECASE)
"""Secret option of a text that is a single URL, such as libpq's `password`, however short; the group ends before it."""
_QUERY = re.compile(
    rf"([?&]{_SECRET_OPTIONS}=)(?![$<{{*.])[^\s&#\"'<>)]{{6,}}"
    rf"|((?:[?&]|%3F|%26){_SECRET_OPTIONS}(?:=|%3D))(?![$<{{*.])(?:[^\s&#\"'<>)%]|%(?!26|23)){{6,}}",
    re.IGNORECASE,
)
"""Secret option of a URL. In a URL that is escaped inside another one, `%26` and `%23` end the option."""
_SEGMENT = re.compile(r"(/(?:tokens?|keys?|secrets?)/)(?=[A-Za-z_.~-]*\d)[\w.~-]{20,}")
_HEADER = re.compile(
    rf"({_WORD}(?:x-)?(?:api|auth|goog-api|access|amz-security|subscription|private|job)-(?:key|token){_IS})"
    r"(?![$<{*.])[^\s\"',;)\\]{6,}",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    rf"({_WORD}authorization{_IS}(?:(?:bearer|basic|token|digest|apikey)(?:\s{{1,4}}|%20))?)"
    r"(?!(?:bearer|basic|token|digest|apikey)\b)(?![$<{*.])[^\s\"',;)\\]{6,}",
    re.IGNORECASE,
)
_COOKIE = re.compile(rf"({_WORD}(?:set-)?cookie{_IS}[\w.-]{{1,60}}=)(?![$<{{*.])[^\s\"';)\\]{{8,}}", re.IGNORECASE)
_BEARER = re.compile(
    rf"({_WORD}bearer(?:\s{{1,4}}|%20))(?=[A-Za-z_.~+/=-]*\d|[\w.~+/=-]{{20}})[\w.~+/=-]{{6,}}", re.IGNORECASE
)
_BASIC = re.compile(rf"({_WORD}basic(?:\s{{1,4}}|%20))([A-Za-z0-9+/]{{8,}}={{0,2}})", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"((?:api_?key|access_?key|private_?key|account_?key|token|secret|password|passwd){_QUOTE}\s{{0,3}}(?:[=:]|%3[AD])"
    rf"\s{{0,3}}{_QUOTE})([\w+/=~-]{{12,400}})(?![\w+/=~(\[-])(?!\.[\w+/=~-])",
    re.IGNORECASE,
)
_SIGNATURE = r"\.(?=[a-z_-]*[A-Z0-9])[\w-]{24}(?![\w-])(?!\.[\w-])"
"""Signature of a token; a full stop may follow it, as at the end of a sentence."""
_STANDALONE = rf"(?:(?<![\w-])(?<![\w-]\.)(?!(?<=\\)[abfnrtvxu]|(?<=%)[0-9A-Fa-f]{{2}})|{_ESCAPE})"
_ATTEMPT = re.compile(rf"{_STANDALONE}([\w-]{{2,400}})\.([\w-]{{2,400}}){_SIGNATURE}", re.ASCII)
_SCOPED = re.compile(
    rf"{_STANDALONE}(?:agent|agent-reward|workers?)\.([\w-]{{2,400}})\.([\w-]{{0,400}}){_SIGNATURE}", re.ASCII
)
"""Tokens of a store's agents, workers and machines; see `store.http.access`."""


def _first(found: "re.Match[str]") -> str:
    return found[1] + MASK


def _option(found: "re.Match[str]") -> str:
    return (found[1] or found[2]) + MASK


def _whole(found: "re.Match[str]") -> str:
    return MASK


def _userinfo(found: "re.Match[str]") -> str:
    return f"{found[1]}{MASK}@"


def _userinfo_in_url(found: "re.Match[str]") -> str:
    return f"{found[1]}{MASK}%40"


def _basic(found: "re.Match[str]") -> str:
    try:
        is_userinfo = b":" in b64decode(found[2] + "=" * (-len(found[2]) % 4))
    except ValueError:
        return found[0]
    return found[1] + MASK if is_userinfo else found[0]


def _assigned(found: "re.Match[str]") -> str:
    return found[1] + MASK if _RANDOM.match(found[2]) else found[0]


def _attempt(found: "re.Match[str]") -> str:
    """Mask an attempt token, which has two base64-encoded ids; other words joined by dots stay unchanged."""
    try:
        ids = [urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode() for part in found.groups()]
    except ValueError:
        return found[0]
    return MASK if all(part.isprintable() for part in ids) else found[0]


class Shape(NamedTuple):
    """Pattern of one kind of secret, and the function that returns its replacement."""

    pattern: "re.Pattern[str]"
    masked: "Callable[[re.Match[str]], str]"
    signs: tuple[str, ...] = ("",)
    """Substrings of the case-folded text; without any of them there is no match, and the slow pattern is skipped."""


_PREFIXES = (
    *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "hf_", "gsk_", "xai-", "xai_", "nvapi-", "pplx-", "tvly-", "r8_"),
    *("npm_", "pypi-", "whsec_", "lsv2_", "glpat-", "gldt-", "glrt-", "glptt-", "ghp_", "gho_", "ghu_", "ghs_"),
    *("ghr_", "github_pat_", "aiza", "gocspx-", "xox", "xapp-"),
)
_SECRET_WORDS = (
    *("api_key", "apikey", "access_key", "accesskey", "private_key", "privatekey", "account_key", "accountkey"),
    *("token", "secret", "password", "passwd"),
)
SHAPES = (
    Shape(_BLOCK, _first, ("private key",)),
    Shape(_USERINFO, _userinfo, ("@",)),
    Shape(_USERINFO_IN_URL, _userinfo_in_url, ("%40",)),
    Shape(_ATTEMPT, _attempt, (".",)),
    Shape(_SCOPED, _attempt, ("agent", "worker")),
    Shape(_JWT, _whole, ("eyj",)),
    Shape(_KEYS, _first, _PREFIXES),
    Shape(_AWS, _first, ("akia", "asia")),
    Shape(_GOOGLE_OAUTH, _first, ("ya29.",)),
    Shape(_QUERY, _option, ("=", "%3d")),
    Shape(_SEGMENT, _first, ("/token", "/key", "/secret")),
    Shape(_AUTHORIZATION, _first, ("authorization",)),
    Shape(_HEADER, _first, ("-key", "-token")),
    Shape(_COOKIE, _first, ("cookie",)),
    Shape(_BEARER, _first, ("bearer",)),
    Shape(_BASIC, _basic, ("basic",)),
    Shape(_ASSIGNED, _assigned, _SECRET_WORDS),
)


@cache
def shapes_in_plain_text() -> tuple[Shape, ...]:
    """Return the shapes for a text without escapes: a search for what follows an escape takes as long as all the rest.

    Compiled on first use, as many processes never mask a text.
    """
    plain = (re.compile(shape.pattern.pattern.replace(f"|{_ESCAPE}", ""), shape.pattern.flags) for shape in SHAPES)
    return tuple(shape._replace(pattern=pattern) for shape, pattern in zip(SHAPES, plain, strict=True))
