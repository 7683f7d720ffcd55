from dataclasses import replace

from backend.runs.supervise.gang_rules import NodeView, first_failure, judge

LIVE = NodeView(rank=0, up_s=100.0)


def _exit(code: int | None, *, time: float = 10.0, stopped: bool = False) -> dict[str, object]:
    return {"code": code, "stopped": stopped, "reason": "x", "left": [], "time": time}


def _gang(*views: NodeView) -> list[NodeView]:
    return [replace(view, rank=rank) for rank, view in enumerate(views)]


def test_a_living_gang_is_kept() -> None:
    assert judge(_gang(LIVE, LIVE)).act == "keep"


def test_finished_only_when_every_node_ended_with_zero() -> None:
    ended = replace(LIVE, exit=_exit(0))
    assert judge(_gang(ended, LIVE)).act == "keep"
    assert judge(_gang(ended, ended)).act == "finish"


def test_one_failed_node_fails_the_gang_and_the_earliest_is_the_culprit() -> None:
    early, late = replace(LIVE, exit=_exit(1, time=11.0)), replace(LIVE, exit=_exit(1, time=12.0))
    verdict = judge(_gang(LIVE, late, early))
    assert (verdict.act, verdict.rank) == ("fail", 2)


def test_exit_times_are_compared_by_one_clock() -> None:
    ahead = replace(LIVE, exit=_exit(1, time=1011.0), clock_offset_s=1000.0)
    late = replace(LIVE, exit=_exit(1, time=12.0))
    assert judge(_gang(late, ahead)).rank == 1


def test_death_by_signal_is_a_failure() -> None:
    assert judge(_gang(LIVE, replace(LIVE, exit=_exit(None)))).act == "fail"


def test_nodes_that_were_stopped_are_no_culprits() -> None:
    stopped = replace(LIVE, exit=_exit(None, time=1.0, stopped=True))
    failed = replace(LIVE, exit=_exit(1, time=2.0))
    assert [view.rank for view in first_failure(_gang(stopped, failed))] == [1]


def test_lost_takes_a_dead_link_a_stale_heartbeat_and_a_witness() -> None:
    gone = NodeView(rank=0, down_s=31.0, silent_s=40.0)
    assert judge(_gang(LIVE, gone)).act == "lose"
    assert judge(_gang(LIVE, gone)).rank == 1
    assert judge(_gang(LIVE, replace(gone, down_s=29.0))).act == "keep"
    assert judge(_gang(LIVE, replace(gone, silent_s=3.0))).act == "keep"
    assert judge(_gang(LIVE, replace(gone, down_s=None, up_s=5.0))).act == "keep", "silent but reachable"


def test_a_server_without_network_leaves_the_run_alone() -> None:
    gone = NodeView(rank=0, down_s=3600.0, silent_s=3600.0)
    assert judge(_gang(gone, gone)).act == "keep"
    assert judge(_gang(gone)).act == "keep"


def test_the_first_node_back_after_an_outage_is_no_witness_yet() -> None:
    gone = NodeView(rank=0, down_s=3600.0, silent_s=3600.0)
    assert judge(_gang(replace(LIVE, up_s=2.0), gone)).act == "keep"


def test_a_node_that_ended_is_not_lost() -> None:
    ended = NodeView(rank=0, exit=_exit(0), down_s=60.0, silent_s=60.0)
    assert judge(_gang(LIVE, ended)).act == "keep"
