"""Which warnings of the preflight an attempt may go past: those that a user has accepted, and nobody else.

They are kept with the events of the run: what was accepted when it was launched, queued or resumed (ANY, or the
warnings' keys, checkup.warning_key), and what each start went past. An automatic restart goes past all of them, because
it was allowed to begin unattended, and says which.
"""

from collections.abc import Collection, Iterable

from backend.runs.launch.preflight import warning_key
from backend.runs.records import Event, problem_from_json
from backend.runs.states import EventKind

ANY = "any"
"""Whatever the nodes' check will warn of: only the start that was asked for with it goes past all."""
_ASKED = (EventKind.CREATED, EventKind.RESUMED, EventKind.RESTARTING)


def kept(accepted: Collection[str] | None) -> str | list[str]:
    """As an event keeps it; None: any."""
    return ANY if accepted is None else sorted(accepted)


def accepted(history: Iterable[Event]) -> frozenset[str] | None:
    """Keys of the warnings that the next attempt may go past; None: all there are."""
    keys: set[str] = set()
    wish: str | list[str] = ANY
    by_user = False
    for event in history:
        if event.kind in _ASKED:
            # Runs of older versions went past all.
            wish = ANY if event.kind is EventKind.RESTARTING else event.detail.get("accepted", ANY)
            keys.update(() if isinstance(wish, str) else wish)
            by_user = event.kind is not EventKind.RESTARTING
        elif event.kind is EventKind.WARNINGS_PASSED and by_user:
            keys.update(warning_key(problem_from_json(one)) for one in event.detail["warnings"])
    return None if isinstance(wish, str) else frozenset(keys)
