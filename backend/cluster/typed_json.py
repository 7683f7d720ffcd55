"""Reader of JSON from a node into typed records. It checks type, range, length and depth, once for all callers.

A record is a TypedDict whose annotations describe the valid values:

    class Gpu(TypedDict, total=False):
        index: Required[Annotated[int, Between(0, 1023)]]
        utilization: Annotated[float, Between(0, 100)]

    gpu, faults = read(Gpu, {"index": 0, "utilization": "high", "colour": 1})
    # {"index": 0}, ["utilization: 'high' is not a number"]

- An optional field that does not fit is left out and named in `faults`. null counts as absent where None does not fit.
- A required field that does not fit, or is missing, makes the whole record None.
- Unknown fields are dropped. So nothing nests deeper than the annotations do.
- In a list or a mapping, each element that does not fit is left out. With `Strict`, the whole list does not fit.
- A text is cut to its maximum length. It holds no lone surrogates, because they cannot be written or sent.
"""

import itertools
import json
import re
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from backend.cluster.node import NodeError

T = TypeVar("T")

TEXT = 4096
"""Maximum length of a text whose annotation has no limit, in characters."""
ITEMS = 4096
"""Maximum length of a list or a mapping whose annotation has no limit."""
PLAIN_DEPTH = 6
"""Maximum depth of a value of any type, such as the default of an engine's key."""
FAULTS = 8
"""Number of faults that are named. A record may have thousands."""
SHOWN = 60
"""Characters of a value that a fault shows."""
WHOLE = 1 << 53
"""Whole numbers below this limit are exact in a browser, too."""
LATEST = float(1 << 32)
"""Latest time in epoch seconds: the year 2106."""


class Between(NamedTuple):
    """A number in [least, most]. NaN and infinity are in no range."""

    least: float
    most: float


class Longest(NamedTuple):
    """Maximum length of a text, a list or a mapping."""

    most: int


class Strict:
    """A list that is used as proof. One element too many, or one that does not fit, makes the whole list a fault."""


class AnyFloat:
    """A float that may be NaN or infinite, as a loss may."""


class Size:
    """The length of a list. A number is read as the length."""


class Like(NamedTuple):
    """A text that the pattern matches completely."""

    pattern: str


Count = Annotated[int, Between(0, WHOLE)]
Epoch = Annotated[float, Between(0.0, LATEST)]
Share = Annotated[float, Between(0.0, 100.0)]
"""Percent."""

Reader = Callable[[object, list[str]], Any]
"""Reads one value. Raises Unfit. The list gets the faults of inner parts that are left out."""


class Unfit(ValueError):
    """The value does not fit. The text has the reason."""


def read(shape: type[T], value: object) -> tuple[T | None, list[str]]:
    """Return (record, faults). The record is None if `value` is not a record of this shape."""
    faults: list[str] = []
    try:
        return cast(T, reader_of(shape)(value, faults)), faults
    except Unfit as error:
        return None, [str(error)]


def read_or_none(shape: type[T], value: object) -> T | None:
    """Return a record from the store, or None. Its faults were reported when it arrived."""
    return read(shape, value)[0]


def answer_of(node: str, shape: type[T], value: object) -> T:
    """Return the answer of a program on a node. Raises NodeError(bad_answer) if any part does not fit.

    A check with only half of an answer might pass wrongly.
    """
    answer, faults = read(shape, value)
    if answer is None or faults:
        raise NodeError("bad_answer", node, command=shape.__name__, exit=0, detail="; ".join(faults))
    return answer


def shown(value: object) -> str:
    """Return the start of a value from a node, in printable characters."""
    # Only the start is converted, because the value may be very long.
    text = ascii(value[:SHOWN] if isinstance(value, str | bytes) else value if _is_small(value) else type(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_small(value: object) -> bool:
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64)


def reader_of(hint: Any) -> Reader:
    """Return the reader for a type: TypedDict, number, text, list, mapping, tuple, Annotated or union."""
    if typing.is_typeddict(hint):
        return _reader_of_record(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(inner[0], inner[1:])
    if origin in (typing.Union, types.UnionType):
        readers = [reader_of(option) for option in inner if option is not types.NoneType]
        reader = readers[0] if len(readers) == 1 else _first_of(readers)
        return _nullable(reader) if types.NoneType in inner else reader
    return _bounded(hint, ())


def _bounded(hint: Any, bounds: tuple[Any, ...]) -> Reader:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    between = next((bound for bound in bounds if isinstance(bound, Between)), None)
    longest = next((bound.most for bound in bounds if isinstance(bound, Longest)), None)
    if hint is bool:
        return _flag
    if Size in bounds:
        return _size
    if hint is int:
        return _whole(between or Between(0, WHOLE))
    if hint is float:
        return _any_float if AnyFloat in bounds else _number(between or Between(-1e18, 1e18))
    if hint is str:
        pattern = next((bound.pattern for bound in bounds if isinstance(bound, Like)), None)
        return _text(longest or TEXT) if pattern is None else _matching(re.compile(pattern))
    if hint is Any:
        return _anything
    if origin is list:
        return _list(reader_of(inner[0]), longest or ITEMS, is_strict=Strict in bounds)
    if origin is dict:
        return _mapping(reader_of(inner[0]), reader_of(inner[1]), longest or ITEMS, is_strict=Strict in bounds)
    if origin is tuple:
        return _row(inner)
    if origin is typing.Literal:
        return _choice(inner)
    raise TypeError(f"no reader for {hint}")


@cache
def _reader_of_record(shape: Any) -> Reader:
    hints = typing.get_type_hints(shape, include_extras=True)
    types_of_fields = {key: _without_required(hint) for key, hint in hints.items()}
    fields = {
        key: (reader_of(hint), key in shape.__required_keys__, types.NoneType in typing.get_args(hint))
        for key, hint in types_of_fields.items()
    }
    required_keys = [key for key in fields if key in shape.__required_keys__]

    def read_record(value: object, faults: list[str]) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit(f"{shown(value)} is not a record")
        for key in required_keys:
            if key not in value:
                raise Unfit(f"{key} is missing")
        record = {}
        for key, part in value.items():
            if key not in fields:
                continue
            reader, is_required, is_nullable = fields[key]
            if part is None and not is_nullable and not is_required:
                continue
            before = len(faults)
            try:
                record[key] = reader(part, faults)
            except Unfit as error:
                if is_required:
                    raise Unfit(f"{key}: {error}") from None
                _note(faults, str(error))
            if len(faults) > before:
                faults[before:] = [f"{key}: {fault}" for fault in faults[before:]]
        return record

    return read_record


def _without_required(hint: Any) -> Any:
    """Return the type inside of Required and NotRequired."""
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        (hint,) = typing.get_args(hint)
    return hint


def _note(faults: list[str], fault: str) -> None:
    if len(faults) < FAULTS:
        faults.append(fault)


def _first_of(readers: list[Reader]) -> Reader:
    def read_first(value: object, faults: list[str]) -> Any:
        for reader in readers[:-1]:
            with suppress(Unfit):
                return reader(value, faults)
        return readers[-1](value, faults)

    return read_first


def _nullable(reader: Reader) -> Reader:
    return lambda value, faults: None if value is None else reader(value, faults)


def _flag(value: object, faults: list[str]) -> bool:
    if value is True or value is False:
        return value
    raise Unfit(f"{shown(value)} is not true or false")


def _number(bounds: Between) -> Reader:
    least, most = bounds

    def read_number(value: Any, faults: list[str]) -> float:
        kind = type(value)
        if kind is not float and kind is not int:
            raise Unfit(f"{shown(value)} is not a number")
        if least <= value <= most:
            return cast(float, value)
        raise Unfit(f"{shown(value)} is not in {least:g} to {most:g}")

    return read_number


def _whole(bounds: Between) -> Reader:
    least, most = bounds

    def read_whole(value: Any, faults: list[str]) -> int:
        if type(value) is not int and not (type(value) is float and value.is_integer()):
            raise Unfit(f"{shown(value)} is not a whole number")
        if least <= value <= most:
            return int(value)
        raise Unfit(f"{shown(value)} is not in {least:g} to {most:g}")

    return read_whole


_any_size = _whole(Between(0, WHOLE))


def _any_float(value: Any, faults: list[str]) -> float:
    if type(value) is float:
        return value
    if type(value) is int and -WHOLE <= value <= WHOLE:
        return value
    raise Unfit(f"{shown(value)} is not a number")


def _text(most: int) -> Reader:
    def read_text(value: Any, faults: list[str]) -> str:
        if type(value) is not str:
            raise Unfit(f"{shown(value)} is not a text")
        if len(value) > most:
            value = value[:most]
        text: str = value
        return text if text.isascii() else text.encode(errors="replace").decode()

    return read_text


def _matching(pattern: re.Pattern[str]) -> Reader:
    def read_matching(value: object, faults: list[str]) -> str:
        if type(value) is str and len(value) <= TEXT and value.isprintable() and pattern.fullmatch(value):
            return value
        raise Unfit(f"{shown(value)} does not match {pattern.pattern}")

    return read_matching


def _size(value: Any, faults: list[str]) -> int:
    return len(value) if type(value) is list else _any_size(value, faults)


def _anything(value: object, faults: list[str]) -> Any:
    """Return any JSON value that is at most PLAIN_DEPTH deep."""
    _check_depth(value, PLAIN_DEPTH)
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _check_depth(value: object, left: int) -> None:
    if not left:
        raise Unfit("nested too deep")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(part, left - 1)


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read_choice(value: Any, faults: list[str]) -> Any:
        if type(value) is str and value in choices:
            return value
        raise Unfit(f"{shown(value)} is none of {', '.join(choices)}")

    return read_choice


def _list(reader: Reader, most: int, *, is_strict: bool) -> Reader:
    def read_list(value: Any, faults: list[str]) -> list[Any]:
        if type(value) is not list:
            raise Unfit(f"{shown(value)} is not a list")
        if len(value) > most:
            if is_strict:
                raise Unfit(f"{len(value)} elements, more than {most}")
            _note(faults, f"{len(value)} elements, more than {most}")
            value = value[:most]
        parts = (_element(reader, index, part, faults, is_strict) for index, part in enumerate(value))
        return list(itertools.chain.from_iterable(parts))

    return read_list


def _mapping(keys: Reader, values: Reader, most: int, *, is_strict: bool) -> Reader:
    def read_mapping(value: Any, faults: list[str]) -> dict[Any, Any]:
        if type(value) is not dict:
            raise Unfit(f"{shown(value)} is not a mapping")
        if len(value) > most:
            raise Unfit(f"{len(value)} entries, more than {most}")
        mapping = {}
        for key, part in value.items():
            for name in _element(keys, "key", key, faults, is_strict):
                for element in _element(values, shown(key), part, faults, is_strict):
                    mapping[name] = element
        return mapping

    return read_mapping


def _element(reader: Reader, index: object, part: object, faults: list[str], is_strict: bool) -> tuple[Any, ...]:
    """Return a tuple of the element, or an empty tuple if it does not fit."""
    before = len(faults)
    try:
        element: tuple[Any, ...] = (reader(part, faults),)
    except Unfit as error:
        if is_strict:
            raise Unfit(f"[{index}] {error}") from None
        _note(faults, str(error))
        element = ()
    if len(faults) > before:
        faults[before:] = [f"[{index}] {fault}" for fault in faults[before:]]
    return element


def _row(hints: tuple[Any, ...]) -> Reader:
    """Return the reader of a tuple from a list. Older programs do not send the last parts, if they may be None."""
    readers = [reader_of(hint) for hint in hints]
    least = len(hints)
    while least and types.NoneType in typing.get_args(hints[least - 1]):
        least -= 1

    def read_row(value: Any, faults: list[str]) -> tuple[Any, ...]:
        if type(value) is not list or not least <= len(value) <= len(readers):
            raise Unfit(f"{shown(value)} is not a row of {len(readers)}")
        padded = value if len(value) == len(readers) else value + [None] * (len(readers) - len(value))
        return tuple([reader(part, faults) for reader, part in zip(readers, padded, strict=True)])

    return read_row
