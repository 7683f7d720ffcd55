"""Taking secrets out of text before it is written anywhere."""

import logging
import re
from collections.abc import Mapping

MARK = "<redacted>"

_TOKEN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[baprs]-)[A-Za-z0-9_\-]{8,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:password|passphrase|passwd|secret(?:[_-]\w+)*|token|api[_-]?key))\b(\s*[=:]\s*)([^\s,;&\"']+)"
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)[^\s/@]+(@)")
_SECRET_NAME = re.compile(r"(?i)password|passphrase|passwd|secret|token$|api_?key|private_?key")


def redact(text: str) -> str:
    """The text with known shapes of secrets replaced: tokens, keys, `name=value` pairs, passwords in URLs."""
    text = _TOKEN.sub(MARK, text)
    text = _BEARER.sub(rf"\1{MARK}", text)
    text = _IN_URL.sub(rf"\1{MARK}\2", text)
    return _NAMED.sub(rf"\1\2{MARK}", text)


def redact_value(value: object, name: str = "") -> object:
    """The same for data of a JSON kind: what is named like a secret goes whole."""
    if _SECRET_NAME.search(name):
        return MARK
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(key): redact_value(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(one) for one in value]
    return value if isinstance(value, int | float | bool | None) else redact(str(value))


class RedactingFormatter(logging.Formatter):
    """Formats a log record, traceback included, and redacts the outcome."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
