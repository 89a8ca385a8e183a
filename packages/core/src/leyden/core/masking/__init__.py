"""Masking: keeps secrets out of records, logs and everything that is printed.

What a model reads and writes is never changed: conversations are recorded as they are.
"""

from leyden.core.masking.known import known_secrets, remember_secret, remember_words
from leyden.core.masking.lines import LineMasker
from leyden.core.masking.secret_variables import (
    OWN_TOKENS,
    PROVIDER_KEYS,
    is_secret_name,
    withheld,
    without_own_tokens,
)
from leyden.core.masking.shapes import MASK, PASSWORD_IN_URL, SECRET_OPTION_OF_URL
from leyden.core.masking.terminal import visible, visible_in_json
from leyden.core.masking.text import (
    MaskingFilter,
    mask_json,
    mask_logs,
    mask_own_logs,
    mask_text,
    mask_values,
    printable,
)

__all__ = [
    "MASK",
    "OWN_TOKENS",
    "PASSWORD_IN_URL",
    "PROVIDER_KEYS",
    "SECRET_OPTION_OF_URL",
    "LineMasker",
    "MaskingFilter",
    "is_secret_name",
    "known_secrets",
    "mask_json",
    "mask_logs",
    "mask_own_logs",
    "mask_text",
    "mask_values",
    "printable",
    "remember_secret",
    "remember_words",
    "visible",
    "visible_in_json",
    "withheld",
    "without_own_tokens",
]
