"""Removes secrets from text before it is written: the secrets that this process knows, and text that looks like one."""

import logging
import re
import threading
from collections.abc import Mapping

from backend.job.secret_patterns import (
    ADDRESS,
    FILE_NAMES,
    NOT_TOKENS,
    PATH,
    SHAPES,
    VALUE_NAMES,
    WEBHOOK_NAMES,
    is_file,
    is_secret,
)

MARK = "<redacted>"

_TOKEN = re.compile(
    rf"\b(?:{SHAPES})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
# A secret follows a known scheme. After another scheme, or none, it is a value that reads neither like a sentence nor
# like a short word or an address.
_AUTHORIZATION = re.compile(
    r"""(?xi)
    (\bauthorization\\{0,7}["']? \s{0,8}[=:][ \t]{0,8} \\{0,7}["']?)
    (?:
        ((?:basic|bearer|digest|negotiate|ntlm|oauth|token|api[_-]?key)[ \t]{1,8}) [^\s"'\\,;]{4,}
        | (?![a-z']{1,20},?[ ][a-z']{1,20},?[ ][a-z]) (?:[a-z][\w-]{0,40}[ \t]{1,8})?
          (?![a-z']{1,9}[.:!?]?(?![^\s"'\\,;)}\]]) | [a-z]{2,9}://) [\w.~+/=-][^\s"'\\,;]{5,}
    )
    """
)
# Quotes may be escaped, as in JSON inside JSON. A quoted value ends at the same quote, escaped as often. The special
# tokens of a tokenizer are no secrets. The length of a name is bounded, so that no text takes quadratic time.
# After the name of a file, two words are a sentence, such as `credentials: not found`.
_BETWEEN = r"""[\\"'\s=:]{1,24}"""
_NOT_FOLLOWED = (
    r"(?!:[ ][a-z']{1,40},?[ ][a-z']{1,40}(?![\w-]{0,40}\s{0,8}[=:]))"
    rf"""(?!{_BETWEEN}{PATH}:?(?:[\s"'`\\,;&]|\Z))"""
)
_SECRET = (
    rf"(?:{VALUE_NAMES}|(?:{FILE_NAMES}){_NOT_FOLLOWED}"
    rf"|(?:{WEBHOOK_NAMES})(?={_BETWEEN}https?://))"
)
_NAMED = re.compile(
    r"""(?xi)
    (?P<before>
        (?P<name_quote>\\{0,7}["'])? (?<![\w-]) (?!NOT_TOKENS\b) [\w-]{0,100}? SECRET \b (?(name_quote)\\{0,7}["'])
        \s*[=:]\s* (?:[bru](?=\\{0,7}["']))?
        | (?<![\w-]) --[\w-]{0,100}? SECRET (?:[ \t]+ | \\{0,7}["'],\s*) (?!-|(?:and|are|for|in|is|not|or|to|was)\b)
    )
    (?:
        (?P<quote>\\{0,7}["']) (?:(?!(?P=quote)) (?: \\{4} | \\{3}["'] | \\. | . ))+
        | (?(name_quote) [^\s,;&"'\\()\[\]{}]+ | (?:[^\s,;&"'\\] | \\(?!\\{0,7}["']))+ )
    )
    """.replace("SECRET", _SECRET).replace("NOT_TOKENS", NOT_TOKENS)
)
_ADDRESS = re.compile(ADDRESS)


_NOTHING = re.compile(r"(?!)")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())


class _KnownSecrets:
    """The secrets of this process. They are never removed, because logs live longer than users need a secret."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: frozenset[str] = frozenset()
        self.text = _NOTHING
        self.data = re.compile(b"(?!)")

    def add(self, value: str) -> None:
        with self._lock:
            self.values |= {value}
            longest_first = sorted(self.values, key=len, reverse=True)
            self.text = re.compile("|".join(map(re.escape, longest_first)))
            self.data = re.compile(self.text.pattern.encode())


_known_secrets = _KnownSecrets()


def hide(value: str) -> None:
    """Add a value to the known secrets. From now on, this module hides it."""
    if value:
        _known_secrets.add(value)


def masked(data: bytes) -> bytes:
    """Return the bytes of a log with each secret as asterisks of the same number, so that offsets stay valid."""
    data = _known_secrets.data.sub(lambda match: b"*" * len(match[0]), data)
    return _TOKEN_BYTES.sub(lambda match: b"*" * len(match[0]), data)


def settled(data: bytes) -> int:
    """Return how many of the bytes cannot be a part of a secret whose end is not written yet."""
    longest = max(map(len, _known_secrets.values), default=0)
    for start in range(max(0, len(data) - longest + 1), len(data)):
        end = data[start:]
        if any(value.encode().startswith(end) for value in _known_secrets.values):
            return start
    return len(data)


def without_known_secrets(text: str) -> str:
    """Return the text without the known secrets; JSON stays JSON."""
    return _known_secrets.text.sub(MARK, text)


def redact(text: str) -> str:
    """Return the text without known secrets and without text that looks like one: tokens, keys, `name=value` pairs,
    passwords in URLs.
    """
    text = without_known_secrets(text)
    text = _TOKEN.sub(MARK, text)
    text = _BEARER.sub(rf"\1{MARK}", text)
    text = _AUTHORIZATION.sub(rf"\1\2{MARK}", text)
    text = _ADDRESS.sub(rf"\g<before>\g<scheme>{MARK}@", text)
    return _NAMED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    """Return a `name=value` pair without the value. A number of JSON becomes a text, so that JSON stays JSON."""
    quote = match["quote"] or ""
    name_quote = "" if quote else match["name_quote"] or ""
    return f"{match['before']}{quote or name_quote}{MARK}{name_quote}"


def redact_value(value: object, name: str = "") -> object:
    """Redact data of a JSON type. A value with the name of a secret goes whole, but a file's path stays."""
    if is_secret(name) and not (isinstance(value, str) and is_file(name, value)):
        return MARK
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(key): redact_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(item) for item in value]
    return value if isinstance(value, int | float | bool | None) else redact(str(value))


class RedactingFormatter(logging.Formatter):
    """Formats a log record with its traceback, and redacts the result."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
