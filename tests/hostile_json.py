"""JSON records with one wrong part, for the readers of what nodes write."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any


def mutations(record: Any, values: Sequence[Any]) -> Iterator[Any]:
    """Yield the record with each of its parts, at any depth, replaced by each value, and with that part removed."""
    for path in _paths(record):
        for value in values:
            changed = copy.deepcopy(record)
            _owner(changed, path)[path[-1]] = value
            yield changed
        changed = copy.deepcopy(record)
        del _owner(changed, path)[path[-1]]
        yield changed


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from _paths(value[key], (*path, key))


def _owner(record: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        record = record[key]
    return record
