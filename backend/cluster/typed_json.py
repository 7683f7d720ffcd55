"""Reads JSON from a node into typed records: type, range, length and depth are checked once, here.

A record is a TypedDict whose annotations say what fits:

    class Gpu(TypedDict, total=False):
        index: Required[Annotated[int, Between(0, 1023)]]
        utilization: Annotated[float, Between(0, 100)]

    found, faults = read(Gpu, {"index": 0, "utilization": "high", "colour": 1})
    # {"index": 0}, ["utilization: 'high' is not a number"]

- An optional field that does not fit is left out and named in `faults`; null counts as absent where None does not fit.
- A required field that does not fit, or is missing, makes the whole record None.
- Unknown fields are dropped. So nothing nests deeper than the annotations do.
- In a list, each element that does not fit is left out. With `Strict`, the whole list does not fit.
- A text is cut to its maximum length and holds no lone surrogates, because they cannot be written or sent.
"""

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
"""Characters of a text that does not say how long it may be."""
ITEMS = 4096
"""Elements of a list or a mapping that does not say how many it may have."""
PLAIN_DEPTH = 6
"""Of a value that may be anything, such as the default of an engine's key."""
FAULTS = 8
"""How many are named; a record may have thousands."""
SHOWN = 60
"""Characters of a value that a fault shows."""
WHOLE = 1 << 53
"""Whole numbers below it are exact in a browser, too."""
LATEST = float(1 << 32)
"""Epoch seconds; the year 2106."""


class Between(NamedTuple):
    """A number in [least, most]; NaN and infinity are in no range."""

    least: float
    most: float


class Longest(NamedTuple):
    """The most characters of a text, or elements of a list or mapping."""

    most: int


class Strict:
    """A list that is used as proof: one element that does not fit, or one too many, makes the whole list a fault."""


class AnyFloat:
    """A float that may be NaN or infinite, as a loss may."""


class Size:
    """A list of which only the length is kept; a number is taken as that length."""


class Like(NamedTuple):
    """A text that the pattern matches completely."""

    pattern: str


Count = Annotated[int, Between(0, WHOLE)]
Epoch = Annotated[float, Between(0.0, LATEST)]
Share = Annotated[float, Between(0.0, 100.0)]
"""In percent."""

Reader = Callable[[object, list[str]], Any]
"""Reads one value. Raises Unfit; an inner part that is left out is named in the list instead."""


class Unfit(ValueError):
    """The value does not fit; the text says why."""


def read(shape: type[T], value: object) -> tuple[T | None, list[str]]:
    """`value` as a record of this shape, and its faults; None if it is not such a record."""
    faults: list[str] = []
    try:
        return cast(T, reader_of(shape)(value, faults)), faults
    except Unfit as error:
        return None, [str(error)]


def read_or_none(shape: type[T], value: object) -> T | None:
    """The same for records in the store, whose faults were reported when they arrived."""
    return read(shape, value)[0]


def answer_of(node: str, shape: type[T], value: object) -> T:
    """The answer of a program on a node. NodeError(bad_answer) if any part does not fit.

    A check with only half of an answer might pass wrongly.
    """
    found, faults = read(shape, value)
    if found is None or faults:
        raise NodeError("bad_answer", node, command=shape.__name__, exit=0, detail="; ".join(faults))
    return found


def shown(value: object) -> str:
    """The start of a value from a node, in printable characters."""
    # Only the start is converted, because the value may be very long.
    text = ascii(value[:SHOWN] if isinstance(value, str | bytes) else value if _is_small(value) else type(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_small(value: object) -> bool:
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64)


def reader_of(hint: Any) -> Reader:
    """The reader for a type: TypedDict, number, text, list, mapping or tuple; Annotated, or a union."""
    if typing.is_typeddict(hint):
        return _reader_of_record(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(inner[0], inner[1:])
    if origin in (typing.Union, types.UnionType):
        readers = [reader_of(one) for one in inner if one is not types.NoneType]
        reader = readers[0] if len(readers) == 1 else _first_of(readers)
        return _nullable(reader) if types.NoneType in inner else reader
    return _bounded(hint, ())


def _bounded(hint: Any, bounds: tuple[Any, ...]) -> Reader:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    between = next((one for one in bounds if isinstance(one, Between)), None)
    longest = next((one.most for one in bounds if isinstance(one, Longest)), None)
    if hint is bool:
        return _flag
    if Size in bounds:
        return _size
    if hint is int:
        return _whole(between or Between(0, WHOLE))
    if hint is float:
        return _any_float if AnyFloat in bounds else _number(between or Between(-1e18, 1e18))
    if hint is str:
        pattern = next((one.pattern for one in bounds if isinstance(one, Like)), None)
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
    bare = {key: _without_marks(hint) for key, hint in hints.items()}
    fields = [
        (key, reader_of(hint), key in shape.__required_keys__, types.NoneType in typing.get_args(hint))
        for key, hint in bare.items()
    ]

    def read_record(value: object, faults: list[str]) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit(f"{shown(value)} is not a record")
        found = {}
        for key, reader, is_required, is_nullable in fields:
            part = value.get(key)
            if part is None and not is_nullable and not is_required:
                continue
            if part is None and key not in value:
                if is_required:
                    raise Unfit(f"{key} is missing")
                continue
            before = len(faults)
            try:
                found[key] = reader(part, faults)
            except Unfit as error:
                if is_required:
                    raise Unfit(f"{key}: {error}") from None
                _note(faults, str(error))
            if len(faults) > before:
                faults[before:] = [f"{key}: {fault}" for fault in faults[before:]]
        return found

    return read_record


def _without_marks(hint: Any) -> Any:
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
    """Any JSON value, at most PLAIN_DEPTH deep."""
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
        return [one for place, part in enumerate(value) for one in _element(reader, place, part, faults, is_strict)]

    return read_list


def _mapping(keys: Reader, values: Reader, most: int, *, is_strict: bool) -> Reader:
    def read_mapping(value: Any, faults: list[str]) -> dict[Any, Any]:
        if type(value) is not dict:
            raise Unfit(f"{shown(value)} is not a mapping")
        if len(value) > most:
            raise Unfit(f"{len(value)} entries, more than {most}")
        found = {}
        for key, part in value.items():
            for one in _element(values, shown(key), part, faults, is_strict):
                found[keys(key, faults)] = one
        return found

    return read_mapping


def _element(reader: Reader, place: object, part: object, faults: list[str], is_strict: bool) -> tuple[Any, ...]:
    """The element, or nothing where it does not fit."""
    before = len(faults)
    try:
        found: tuple[Any, ...] = (reader(part, faults),)
    except Unfit as error:
        if is_strict:
            raise Unfit(f"[{place}] {error}") from None
        _note(faults, str(error))
        found = ()
    if len(faults) > before:
        faults[before:] = [f"[{place}] {fault}" for fault in faults[before:]]
    return found


def _row(hints: tuple[Any, ...]) -> Reader:
    """A tuple, from a list. Last parts that may be None may be missing: older programs do not send them."""
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
