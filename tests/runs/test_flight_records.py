"""NCCL's flight records are sent to the server at a node's end."""

from backend.runs.collect import flight_records
from backend.runs.states import EventKind
from tests.runs.conftest import RUN, Gang


def test_a_flight_record_is_kept_whole_and_privately_and_reported(gang: Gang) -> None:
    monitor = gang.monitor()
    record = bytes(range(256)) * 8192  # This needs two reads.
    gang.nodes[1].files["/r/node1/nccl_trace_rank_1"] = record
    gang.exit(1, 1)
    assert gang.pass_time(monitor, 30)
    path = flight_records.folder_of(gang.home, RUN, 1) / "nccl_trace_rank_1"
    assert path.read_bytes() == record
    assert path.stat().st_mode & 0o777 == 0o600
    (message,) = [event for event in gang.events() if event.kind is EventKind.FLIGHT_RECORDS]
    assert (message.rank, message.detail["files"]) == (1, [str(path)])


def test_a_disk_that_cannot_take_it_does_not_keep_the_run_from_ending(gang: Gang) -> None:
    monitor = gang.monitor()
    (gang.home / "flight_records").write_text("in the way")
    gang.nodes[1].files["/r/node1/nccl_trace_rank_1"] = b"x"
    gang.exit(1, 1)
    assert gang.pass_time(monitor, 30)
