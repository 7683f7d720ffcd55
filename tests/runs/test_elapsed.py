"""The elapsed time is the time in which the gang ran, the same on the page and on the command line."""

from backend.runs.records import Elapsed
from backend.runs.states import EventKind
from tests.runs.conftest import Gang

BEGAN = 1000.0


def _elapsed(gang: Gang) -> Elapsed | None:
    return gang.snapshot().elapsed


def _at(gang: Gang, seconds: float, *kinds: EventKind) -> None:
    gang.clock.now = BEGAN + seconds
    for kind in kinds:
        assert gang.add_event(kind)


def test_an_attempt_under_way_counts_from_its_start(gang: Gang) -> None:
    assert _elapsed(gang) == Elapsed(done_s=0.0, since=BEGAN)


def test_the_pause_between_two_attempts_and_the_wait_in_the_queue_do_not_count(gang: Gang) -> None:
    _at(gang, 600, EventKind.STOP_REQUESTED)
    _at(gang, 610, EventKind.STOPPED)
    assert _elapsed(gang) == Elapsed(done_s=610.0, since=None)
    _at(gang, 90_000, EventKind.RESUMED)
    _at(gang, 91_000, EventKind.PREFLIGHT)
    assert _elapsed(gang) == Elapsed(done_s=610.0, since=None)
    _at(gang, 91_020, EventKind.STARTING, EventKind.STARTED)
    assert _elapsed(gang) == Elapsed(done_s=610.0, since=BEGAN + 91_020)
    _at(gang, 91_120, EventKind.FINISHED)
    elapsed = _elapsed(gang)
    assert elapsed == Elapsed(done_s=710.0, since=None)
    assert elapsed.at(BEGAN + 1e6) == 710.0


def test_the_wait_before_an_automatic_restart_does_not_count(gang: Gang) -> None:
    _at(gang, 100, EventKind.FAILING, EventKind.RESTARTING)
    _at(gang, 400, EventKind.PREFLIGHT, EventKind.STARTING)
    elapsed = _elapsed(gang)
    assert elapsed is not None
    assert elapsed.at(BEGAN + 450) == 150.0


def test_a_run_that_failed_its_check_has_not_been_at_work_since(gang: Gang) -> None:
    _at(gang, 100, EventKind.FAILING, EventKind.FAILED)
    _at(gang, 500, EventKind.RESUMED, EventKind.PREFLIGHT, EventKind.FAILING)
    _at(gang, 900, EventKind.FAILED)
    assert _elapsed(gang) == Elapsed(done_s=100.0, since=None)


def test_a_run_that_ended_while_no_server_watched_ended_when_its_nodes_say(gang: Gang) -> None:
    gang.clock.now = BEGAN + 3600
    for rank in range(3):
        gang.exit(rank, time=BEGAN + 3600 + rank)
    gang.clock.now = BEGAN + 8 * 3600
    assert gang.pass_time(gang.monitor(), 5)
    shown = gang.snapshot()
    assert shown.elapsed == Elapsed(done_s=3602.0, since=None)
    assert shown.ended == BEGAN + 3602
