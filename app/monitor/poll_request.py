"""What a browser asks: which run it shows, and what of it the browser has already. Nothing in it is trusted."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LogQuestion:
    """Which log is shown and how much of it is there."""

    attempt: int | None = None
    """None: the newest one."""
    node: int = 0
    file: str | None = None
    """Where the node has it; else, and for None, the first one there is."""
    end: int | None = None
    """Offset up to which the browser has it; None when it has nothing."""
    before: int | None = None
    """Asks for earlier lines: those that end at this offset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageQuestion:
    """Which measure of the nodes is shown over time, and how far."""

    measure: str | None = None
    """None: the first one there is."""
    have: Mapping[int, tuple[int, ...]]
    """Node rank -> what the newest answer about it said that the browser has then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One tick of one tab."""

    run: str = ""
    """Empty for the list of runs."""
    seen: Mapping[str, str]
    """Section -> version that the browser shows."""
    generation: int | None = None
    seq: int | None = None
    """Cursor of the newest point the browser has."""
    log: LogQuestion = LogQuestion()
    usage: UsageQuestion | None = None
    """None: not asked for this time."""
    storage: bool = False
    """What the database takes is shown, too."""
    erase: str | None = None
    """The run that the dialog before a deletion is open for."""
    detail: tuple[int, int] | None = None
    """The stretch of steps, first and last, that it wants in detail."""

    @classmethod
    def of(cls, value: object) -> "Question":
        """From the browser's mapping; whatever is not of its type counts as missing."""
        asked = _mapping(value)
        points, log = _mapping(asked.get("points")), _mapping(asked.get("log"))
        seen = {key: one for key, one in _mapping(asked.get("seen")).items() if isinstance(one, str)}
        return cls(
            run=_text(asked.get("run")) or "",
            seen=seen,
            generation=_count(points.get("generation")),
            seq=_count(points.get("seq")),
            log=LogQuestion(
                attempt=_count(log.get("attempt")),
                node=_count(log.get("node")) or 0,
                file=_text(log.get("file")),
                end=_count(log.get("end")),
                before=_count(log.get("before")),
            ),
            usage=_usage(asked["usage"]) if "usage" in asked else None,
            storage=asked.get("storage") is True,
            erase=_text(asked.get("erase")),
            detail=_stretch(_mapping(asked.get("detail"))),
        )


def _usage(value: object) -> UsageQuestion:
    asked = _mapping(value)
    told = {rank: _counts(one) for rank, one in _mapping(asked.get("have")).items()}
    have = {int(rank): one for rank, one in told.items() if rank.isdecimal() and len(one) == 3}
    return UsageQuestion(measure=_text(asked.get("measure")), have=have)


def _stretch(asked: Mapping[str, object]) -> tuple[int, int] | None:
    first, last = _count(asked.get("first")), _count(asked.get("last"))
    return None if first is None or last is None or first > last else (first, last)


def _counts(value: object) -> tuple[int, ...]:
    counts = [_count(one) for one in value] if isinstance(value, list) else []
    return tuple(one for one in counts if one is not None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
