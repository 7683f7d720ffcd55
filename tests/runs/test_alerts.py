"""Alerts from steps: a disk that fills up, GPU memory that runs short, and gradients that are not finite."""

import math
import sqlite3

import pytest

from app.text.alerts import why
from backend.job.mapping import dump_job, with_values
from backend.runs.diagnosis.alerts import GIB
from backend.runs.states import EventKind
from backend.runs.store import run_store
from tests.runs.conftest import RUN, Gang


def save(gang: Gang, rank: int, step: int, *, free: float, size: float = 10, inode: int = 5) -> None:
    """Write a step of a node's rank after a save, and read it at once. Sizes are in GiB."""
    row = {"step": step, "time": float(step), "free_bytes": int(free * GIB), "checkpoint_bytes": int(size * GIB)}
    gang.write(rank, f"steps.rank{rank}.jsonl", {**row, "results_inode": inode})
    gang.collector(rank).poll(gang.nodes[rank])


def told(gang: Gang, kind: EventKind) -> list[tuple[int | None, object]]:
    return [(event.rank, event.detail["step"]) for event in gang.events() if event.kind is kind]


def test_a_disk_with_room_for_fewer_than_two_checkpoints_is_reported_and_again_for_fewer_than_one(gang: Gang) -> None:
    save(gang, 0, 10, free=20)
    assert told(gang, EventKind.DISK_LOW) == []
    for step, free in ((20, 19.9), (30, 12.0), (40, 0), (50, 9.0), (60, 15.0)):
        save(gang, 0, step, free=free)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20), (0, 40)]
    first = next(event for event in gang.events() if event.kind is EventKind.DISK_LOW)
    assert (round(first.detail["free_gib"], 1), first.detail["checkpoint_gib"]) == (19.9, 10.0)


def test_nodes_that_share_a_disk_tell_of_it_once_and_others_each_of_its_own(gang: Gang) -> None:
    save(gang, 0, 20, free=15, inode=5)
    save(gang, 1, 20, free=15, inode=5)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20)]
    save(gang, 1, 30, free=15, inode=6)
    assert told(gang, EventKind.DISK_LOW) == [(0, 20), (1, 30)]


def test_a_checkpoint_without_bytes_says_nothing(gang: Gang) -> None:
    save(gang, 0, 20, free=0, size=0)
    assert told(gang, EventKind.DISK_LOW) == []


def test_gpu_memory_that_runs_short_is_reported_once_a_node(gang: Gang) -> None:
    for rank, step, retries in ((1, 1, 0), (1, 2, 3), (1, 3, 9), (0, 4, 1)):
        gang.write(rank, f"steps.rank{rank}.jsonl", {"step": step, "time": float(step), "alloc_retries": retries})
        gang.collector(rank).poll(gang.nodes[rank])
    assert told(gang, EventKind.ALLOC_RETRIES) == [(1, 2), (0, 4)]
    detail = next(event.detail for event in gang.events() if event.kind is EventKind.ALLOC_RETRIES)
    assert (detail["of_rank"], detail["retries"]) == (1, 3)


def train(gang: Gang, norms: list[float], *, loss: float = 1.5, first: int = 1) -> list[object]:
    """Write steps with these gradient norms, read them at once, and return the details of the alerts so far."""
    for step, norm in enumerate(norms, first):
        row = {"step": step, "time": float(step), "loss": loss, "grad_norm": norm}
        gang.write(0, "steps.rank0.jsonl", row)
    gang.collector().poll(gang.nodes[0])
    events = [event.detail for event in gang.events() if event.kind is EventKind.GRAD_NORM_NOT_FINITE]
    return [(detail["step"], detail["grad_norm"], detail["count"]) for detail in events]


def set_precision(gang: Gang, precision: str) -> None:
    def change(connection: sqlite3.Connection) -> None:
        job = run_store.run_job(run_store.run_row(connection, RUN)["job"])
        text = dump_job(with_values(job, {"training.precision": precision}))
        connection.execute("UPDATE runs SET job = ? WHERE id = ?", (text, RUN))

    gang.store.write(change)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_one_gradient_norm_that_is_not_finite_is_reported_where_no_loss_scale_explains_it(
    gang: Gang, precision: str
) -> None:
    set_precision(gang, precision)
    assert train(gang, [1.0, 2.0]) == []
    assert train(gang, [math.inf, 2.0], first=3) == [(3, "inf", 1)]
    assert train(gang, [math.nan, 1.0], first=5) == [(3, "inf", 1)], "once in 500 steps"


@pytest.mark.parametrize(("precision", "advised"), [("bf16", False), ("fp32", False), ("fp16", True)])
def test_only_a_run_in_fp16_is_told_to_use_bf16_and_the_text_opens_with_what_happened(
    gang: Gang, precision: str, advised: bool
) -> None:
    set_precision(gang, precision)
    train(gang, [1.0, *[math.inf] * 5])
    [event] = (event for event in gang.events() if event.kind is EventKind.GRAD_NORM_NOT_FINITE)
    for language, opening in (("en", "The gradients are NaN or infinite"), ("zh", "梯度")):
        text = why(event, language)
        assert text.startswith(opening)
        assert ("bf16 instead of fp16" in text or "bf16 代替 fp16" in text) == advised


def test_in_fp16_some_are_normal_and_a_row_is_not(gang: Gang) -> None:
    set_precision(gang, "fp16")
    start = [math.inf] * 20  # the first loss scale is too high
    assert train(gang, [*start, 1.0, math.inf, math.inf, 1.0, math.nan, 2.0]) == []
    assert train(gang, [math.inf] * 4, first=27) == []
    assert train(gang, [math.nan], first=31) == [(27, "nan", 5)]


def test_in_fp16_a_row_that_no_first_loss_scale_explains_is_reported(gang: Gang) -> None:
    set_precision(gang, "fp16")
    assert train(gang, [math.inf] * 34) == []
    assert train(gang, [math.inf], first=35) == [(1, "inf", 35)]


def test_a_repeated_alert_names_the_start_of_the_whole_row_and_comes_500_steps_after_the_last_one(gang: Gang) -> None:
    set_precision(gang, "bf16")
    alerts = train(gang, [1.0, 2.0, *[math.inf] * 60])
    assert alerts == [(3, "inf", 1)]
    for first in range(63, 563, 100):
        assert alerts == [(3, "inf", 1)], first
        alerts = train(gang, [math.inf] * 100, first=first)
    assert alerts == [(3, "inf", 1), (3, "inf", 461)]
    assert train(gang, [math.inf] * 499, first=563) == alerts, "the last alert was at step 562"
    alerts = train(gang, [math.inf], first=1062)
    assert alerts[2:] == [(3, "inf", 1060)]
    assert train(gang, [1.0, *[math.nan] * 499], first=1063)[3:] == [(1064, "nan", 1)], "another row"


def test_beside_a_loss_that_is_not_finite_the_norm_is_no_news(gang: Gang) -> None:
    set_precision(gang, "bf16")
    assert train(gang, [math.nan], loss=math.nan) == []
