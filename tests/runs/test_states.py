import itertools

import pytest

from backend.runs.states import FINAL, MOVING, TRANSITIONS, EventKind, RunState, fold, next_state


@pytest.mark.parametrize("state", [None, *RunState])
def test_every_pair_moves_as_the_table_says_or_not_at_all(state: RunState | None) -> None:
    for kind in EventKind:
        after = next_state(state, kind)
        assert after == TRANSITIONS.get((state, kind), state), kind
        if state in FINAL and kind is not EventKind.RESUMED:
            assert after is state, f"nothing but a user leaves a final state: {kind}"
        if state is RunState.FINISHED:
            assert after is state, f"what is finished stays so: {kind}"
        if kind not in MOVING:
            assert after is state, kind


def test_every_state_can_be_reached_and_every_unfinished_one_can_end() -> None:
    reached = {RunState.QUEUED, RunState.WATCHED}
    while True:
        more = {after for (state, _), after in TRANSITIONS.items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(RunState) - {RunState.BROKEN}
    for state in reached - FINAL - {RunState.WATCHED}:
        ways = {RunState.STOPPING if state is not RunState.STOPPING else RunState.FAILED}
        assert ways <= {after for (before, _), after in TRANSITIONS.items() if before is state}


def test_no_history_of_events_leads_out_of_a_final_state() -> None:
    for kinds in itertools.product(sorted(MOVING - {EventKind.RESUMED}), repeat=3):
        states = [fold([EventKind.CREATED, *kinds[:length]]) for length in range(4)]
        ended = [state for state in states if state in FINAL]
        assert len(set(ended)) <= 1
        assert not ended or states[-1] is ended[0]


def test_one_run_from_launch_to_its_end() -> None:
    launch = [EventKind.CREATED, EventKind.PREFLIGHT, EventKind.STARTING, EventKind.NODE_STARTED, EventKind.STARTED]
    assert fold([]) is None
    assert fold(launch) is RunState.RUNNING
    assert fold([*launch, EventKind.NODE_EXITED, EventKind.FINISHED]) is RunState.FINISHED
    assert fold([*launch, EventKind.STOP_REQUESTED, EventKind.STOPPED]) is RunState.STOPPED
    assert fold([*launch, EventKind.FAILING, EventKind.STOP_REQUESTED]) is RunState.STOPPING
    assert fold([*launch, EventKind.FAILING, EventKind.FAILED]) is RunState.FAILED
    assert fold([*launch, EventKind.LOSING, EventKind.LOST]) is RunState.LOST


def test_the_next_attempt_goes_the_way_of_the_first() -> None:
    attempt = [EventKind.PREFLIGHT, EventKind.STARTING, EventKind.STARTED]
    for again in ([EventKind.LOSING, EventKind.LOST, EventKind.RESUMED], [EventKind.FAILING, EventKind.RESTARTING]):
        before = [EventKind.CREATED, *attempt, *again]
        assert fold(before) is RunState.QUEUED
        assert fold([*before, EventKind.PREFLIGHT, EventKind.WAITING]) is RunState.QUEUED
        assert fold([*before, *attempt, EventKind.FINISHED]) is RunState.FINISHED
