"""An answer to a poll, joined from JSON texts that are shared by all tabs."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page as JSON, and its version."""

    text: str
    version: str

    @classmethod
    def from_value(cls, value: object) -> "Section":
        text = to_json(value)
        return cls(text=text, version=f"{zlib.crc32(text.encode()):08x}")


@dataclass(kw_only=True, slots=True)
class Answer:
    """The sections that a tab needs. Empty if it is up to date."""

    shown: Mapping[str, str]
    """Section -> version that the tab shows."""
    texts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Add a part that has no version."""
        self.texts[name] = text

    def add_news(self, sections: Mapping[str, Section]) -> None:
        """Add the sections that the tab has in another version."""
        for name, section in sections.items():
            if self.shown.get(name) != section.version:
                self.texts[name] = section.text
                self.versions[name] = section.version

    def to_json(self, **head: object) -> str | None:
        """Return one JSON string that begins with `head`. None if the tab is up to date."""
        if not self.texts:
            return None
        parts = {name: to_json(value) for name, value in head.items()} | self.texts
        if self.versions:
            parts["versions"] = to_json(self.versions)
        return join(parts)


def join(parts: Mapping[str, str]) -> str:
    """Return the JSON of a mapping whose values are JSON already."""
    return "{" + ",".join(f"{to_json(name)}:{text}" for name, text in parts.items()) + "}"


def to_json(value: object) -> str:
    """Return compact JSON. NaN and infinity, which JSON does not have, become null."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
