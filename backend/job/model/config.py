"""Values of a Hugging Face config.json, checked. A value that planning cannot read is refused by its key."""

import json
from collections.abc import Mapping
from typing import Any

from backend.job.problems import Problem, ProblemsError

FIELD = "model.hf_config"


def refusal(code: str, **values: object) -> ProblemsError:
    """Return the error that refuses a config."""
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])


def _as_written(value: object) -> object:
    """Return a value as JSON writes it, so that the text "4096" differs from the number."""
    return json.dumps(value) if isinstance(value, str) else value


class Config:
    """The keys of one part of a config.json. A key that is absent has the default of its model type, if any."""

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._values = values
        self._defaults = defaults or {}
        self._names = names or {}
        """The family's name of a key, by the name that most families use."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the keys that the config itself gives."""
        return self._values

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of any type. A null is the absence of what the key says, not of the key."""
        key = self._names.get(key, key)
        value = self._values[key] if key in self._values else self._defaults.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Return whether the config itself gives the key."""
        return self._values.get(self._names.get(key, key)) is not None

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a value as a flag."""
        return bool(self.get(key, default))

    def size(self, *keys: str, default: int | None = None, largest: int = 10**9) -> int:
        """Return the first of `keys` that is present, as a positive whole number.

        A value that is absent by default (no experts, no shared expert) may also be 0.
        Raises ProblemsError: missing_model_key, bad_model_key.
        """
        given = [key for key in keys if self.has(key)] or [key for key in keys if self.get(key) is not None]
        if not given:
            if default is None:
                raise refusal("missing_model_key", key=self._names.get(keys[0], keys[0]))
            return default
        value = self.get(given[0])
        smallest = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise refusal("bad_model_key", key=self._names.get(given[0], given[0]), value=_as_written(value))
        return value

    def indexes(self, key: str, *, may_be_text: bool = False) -> tuple[int, ...]:
        """Return a list of layer indexes; empty if it is absent. A text such as "3,4,5" may list them."""
        value = self.get(key, ())
        if may_be_text and isinstance(value, str):
            value = [int(each) if each.strip().isdecimal() else each for each in value.split(",") if each.strip()]
        if not isinstance(value, list | tuple) or not all(type(index) is int for index in value):
            raise refusal("bad_model_key", key=key, value=value)
        return tuple(value)


def part(config: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return a nested part of a config, or None if it is absent or empty."""
    value = config.get(key)
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise refusal("bad_model_key", key=key, value=value)
    return value
