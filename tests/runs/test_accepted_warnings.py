"""A warning that the user has not accepted stops a launch, but not an automatic restart."""

from collections.abc import Sequence
from typing import Any

import pytest

from backend.job.problems import Problem
from backend.runs.launch.accepted_warnings import ANY, accepted_keys, to_stored
from backend.runs.records import Event, problem_to_json
from backend.runs.states import EventKind

SHM, CLOCK = "shm_small 10.0.0.1", "clock_off 10.0.0.2"
PASSED = {"warnings": [problem_to_json(Problem(code="shm_small", node="10.0.0.1", values={"mib": 64}))]}


def _history(*events: tuple[EventKind, dict[str, Any]]) -> list[Event]:
    return [
        Event(seq=seq, run="r", attempt=1, rank=None, kind=kind, time=0.0, detail=detail)
        for seq, (kind, detail) in enumerate(events)
    ]


CREATED, RESUMED, RESTARTING = EventKind.CREATED, EventKind.RESUMED, EventKind.RESTARTING


@pytest.mark.parametrize(
    ("events", "keys"),
    [
        ([(CREATED, {})], None),
        ([(CREATED, {"accepted": []})], set()),
        ([(CREATED, {"accepted": [SHM]})], {SHM}),
        ([(CREATED, {"accepted": ANY})], None),
        ([(CREATED, {"accepted": [SHM]}), (RESUMED, {"accepted": [CLOCK]})], {SHM, CLOCK}),
        ([(CREATED, {"accepted": [SHM]}), (RESUMED, {"accepted": ANY})], None),
        ([(CREATED, {"accepted": []}), (RESTARTING, {})], None),
        # What `--accept-warnings` let pass is accepted from then on; what is new is not.
        ([(CREATED, {"accepted": ANY}), (EventKind.WARNINGS_PASSED, PASSED), (RESUMED, {"accepted": []})], {SHM}),
        # What a restart went past was told, and accepted by nobody.
        (
            [
                (CREATED, {"accepted": [CLOCK]}),
                (RESTARTING, {}),
                (EventKind.WARNINGS_PASSED, PASSED),
                (RESUMED, {"accepted": []}),
            ],
            {CLOCK},
        ),
    ],
    ids=["older version", "none", "one", "any", "resumed", "resumed with any", "restart", "passed", "restart passed"],
)
def test_what_the_next_attempt_may_go_past(
    events: Sequence[tuple[EventKind, dict[str, Any]]], keys: set[str] | None
) -> None:
    assert accepted_keys(_history(*events)) == keys


def test_what_is_accepted_is_kept_in_order_so_that_equal_wishes_are_equal() -> None:
    assert (to_stored(None), to_stored({CLOCK, SHM}), to_stored(())) == (ANY, [CLOCK, SHM], [])
