"""The table of faults: what the tests of this session broke, and what came of it. conftest.py prints it at the end."""

from dataclasses import asdict, dataclass

from backend.runs.records import RunSnapshot
from backend.runs.states import EventKind

SEEN = (EventKind.FAILING, EventKind.LOSING, EventKind.NODE_SLOW)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    fault: str
    trainer: str
    detected_s: float | None
    """Seconds from the fault to the event that reports it; None if the fault must do no harm."""
    ended_s: float | None
    outcome: str
    culprit: str
    left: int
    """Processes with the run's mark on all nodes, and its containers, after the run had ended and the network was
    whole again."""
    lost: int
    """Steps in a node's file that the store does not have."""
    doubled: int


ROWS: list[Row] = []
"""The rows of this test session in order."""


def add_row(
    fault: str, trainer: str, shown: RunSnapshot, began: float, *, left: int, lost: int = 0, doubled: int = 0
) -> Row:
    """Add a row for a run that has ended. `began`: the time of the fault; 0: there was none."""
    seen_at = next((event.time for event in shown.events if event.kind in SEEN), None)
    row = Row(
        fault=fault,
        trainer=trainer,
        detected_s=None if seen_at is None or not began else round(seen_at - began, 1),
        ended_s=None if shown.ended is None or not began else round(shown.ended - began, 1),
        outcome=shown.state.value + (f": {shown.cause.code}" if shown.cause else ""),
        culprit=(shown.cause.node or "") if shown.cause else "",
        left=left,
        lost=lost,
        doubled=doubled,
    )
    ROWS.append(row)
    return row


def table(rows: list[Row]) -> list[str]:
    """Return the rows as lines of text with aligned columns."""
    columns = list(Row.__dataclass_fields__)
    cells = [columns, *[["-" if value is None else str(value) for value in asdict(row).values()] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
