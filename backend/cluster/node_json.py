"""The only reader of JSON from a node. It limits size and depth, and refuses numbers that only Python knows.

A node may send any structure. The result holds only dict, list, str, bool, None, int of 64 bits and finite float. The
caller checks the structure.
"""

import json
import math
import re
from typing import Any, NoReturn

MOST_BYTES = 4 << 20
"""Default size of one text. In the worst case Python needs about 25 times as much memory."""
MOST_DEPTH = 32
"""Default depth of nested lists and objects. The deepest answer of our programs has 6."""
LONGEST_NUMBER = 32
"""Characters of an integer. Python takes seconds for millions of digits, and refuses more than 4,300 digits."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A string, closed or not. The brackets outside of strings are the nested ones."""
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_LARGEST = 1 << 63


class BadJson(ValueError):
    """The text is not JSON that a node may send. The message has the reason."""


def parse_node_json(
    text: str | bytes, *, max_bytes: int = MOST_BYTES, max_depth: int = MOST_DEPTH, any_number: bool = False
) -> Any:
    """Return the value of a JSON text that a node wrote. Raises BadJson, and nothing else.

    The function refuses more than `max_bytes` of UTF-8, more than `max_depth` nested lists and objects, NaN, Infinity,
    integers beyond 64 bits, numbers beyond a finite float, and bytes that are not UTF-8. Lone surrogates (from file
    names that are not Unicode) become `?`, because they cannot be written or sent. With `any_number` it accepts every
    number, because a loss may be NaN.
    """
    text = _decoded(text, max_bytes)
    _check_depth(text, max_depth)
    try:
        value = json.loads(text) if any_number else _with_plain_numbers(text)
        return _without_surrogates(value) if "\\u" in text else value
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)[:200]) from error


def _decoded(text: str | bytes, max_bytes: int) -> str:
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if len(data) > max_bytes:
        raise BadJson(f"larger than {max_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadJson("not UTF-8") from error


def _check_depth(text: str, max_depth: int) -> None:
    """Check the depth before parsing. json.loads would raise RecursionError, or in some builds end the process."""
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for bracket in _NO_BRACKET.sub("", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > max_depth:
            raise BadJson(f"nested deeper than {max_depth}")


def _with_plain_numbers(text: str) -> Any:
    return json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_constant)


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER or not -_LARGEST <= (value := int(digits)) < _LARGEST:
        raise BadJson("an integer of more than 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadJson("a number that is not finite")
    return value


def _constant(name: str) -> NoReturn:
    raise BadJson(f"{name} is no number")


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates. `\\ud800` is legal JSON, but cannot be encoded."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
