"""Utilization of a run's nodes is stored for its whole time in few rows, and no low or high value is lost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backend.runs.records import NodeRecord
from backend.runs.store import attempts, metrics, run_store, utilization
from backend.runs.store.store import Store

RUN = "20260101-000000-usage-aaaa"
BEGUN = 1_800_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "megaboard.db")
    store.write(
        lambda c: run_store.create_run(c, RUN, name="usage", engine="e", job="{}", addresses=["10.0.0.1"], time=BEGUN)
    )
    attempt(store)
    return store


def attempt(store: Store, number: int = 1, offset_s: float = 0.0) -> None:
    node = NodeRecord(
        rank=0, address="10.0.0.1", folder=f"/r{number}", python="/p", mark=f"m{number}", clock_offset_s=offset_s
    )
    begun = {"master": ("10.0.0.1", 29500), "rendered": {}, "nodes": [node], "checkpoint_step": None}
    store.write(lambda c: attempts.create(c, RUN, number, time=BEGUN, **begun))


def beat(after_s: float, busy: Sequence[float | None] = (), **more: Any) -> dict[str, Any]:
    gpus = [
        {"index": i, "utilization": item, "memory_used_mib": 40_000, "memory_total_mib": 80_000, "power_w": 500.0}
        for i, item in enumerate(busy)
    ]
    host = {"load1": 4.0, "memory_used_mib": 1_000, "memory_total_mib": 4_000}
    return {"time": BEGUN + after_s, "gpus": gpus, **host, **more}


def take(store: Store, *beats: dict[str, Any], number: int = 1, received: float | None = None) -> None:
    received = beats[-1]["time"] + 1 if received is None else received
    store.write(lambda c: metrics.add_heartbeats(c, RUN, number, 0, beats, received))


def kept(store: Store, since: int = 0) -> list[utilization.Stretch]:
    with store.read() as connection:
        return utilization.stretches(connection, RUN, 0, since=since)


def test_beats_of_one_stretch_are_their_mean_by_gpu_with_the_lowest_and_highest_of_the_node(store):
    take(store, beat(0, [90, 50]), beat(2, [100, 40]), beat(4, [80, 80]))
    first, second = kept(store)
    assert (first.start, first.width, first.beats) == (BEGUN, utilization.NARROWEST_S, 2)
    assert first.measures["utilization"] == utilization.Measured(low=70, high=70, devices={"0": 95, "1": 45})
    assert first.measures["memory"].devices == {"0": 50, "1": 50}
    assert first.measures["power"].devices == {"0": 500, "1": 500}
    assert first.measures["load"] == utilization.Measured(low=4, high=4, devices={"": 4})
    assert first.measures["host_memory"].devices == {"": 25}
    assert second.beats == 1
    assert [row.start for row in kept(store, since=second.start)] == [second.start]


def test_the_same_comes_of_beats_one_by_one(store, tmp_path):
    beats = [beat(2 * i, [90 - i, 50 + i]) for i in range(9)]
    for row in beats:
        take(store, row)
    together = Store(tmp_path / "together.db")
    together.write(
        lambda c: run_store.create_run(c, RUN, name="usage", engine="e", job="{}", addresses=["10.0.0.1"], time=BEGUN)
    )
    attempt(together)
    take(together, *beats)
    assert kept(together) == kept(store)


@pytest.mark.slow
def test_a_run_of_days_has_no_more_rows_than_one_of_an_hour_and_still_shows_its_dip(store):
    count = utilization.ROWS * 10
    dip = count // 3
    beats = [beat(4 * i, [0.0 if i == dip else 97.0] * 8) for i in range(count)]
    for begin in range(0, count, 900):
        take(store, *beats[begin : begin + 900])
    rows = kept(store)
    assert utilization.ROWS // 2 <= len(rows) <= utilization.ROWS
    assert sum(item.beats for item in rows) == count
    assert {item.width for item in rows} == {16 * utilization.NARROWEST_S}
    assert [item.measures["utilization"].low for item in rows].count(0.0) == 1
    with store.read() as connection:
        size = sum(len(json.dumps(list(row))) for row in connection.execute("SELECT * FROM usage"))
    assert size < 300_000


def test_what_a_node_does_not_tell_is_no_measure(store):
    take(store, beat(0), beat(60, [None]))
    bare, silent = kept(store)
    assert set(bare.measures) == {"load", "host_memory"}
    assert set(silent.measures) == {"memory", "power", "load", "host_memory"}


def test_a_gpu_that_falls_off_its_node_leaves_the_others_as_they_were(store):
    take(store, beat(0, [90, 50]), beat(2, [70]))
    assert kept(store)[0].measures["utilization"].devices == {"0": 80, "1": 50}


def test_times_are_ours_and_never_run_backwards(store):
    attempt(store, 2, offset_s=3600.0)
    take(store, beat(3600, [10]), number=2, received=BEGUN + 1)
    assert kept(store)[0].start == BEGUN
    take(store, beat(3660, [10]), number=2, received=BEGUN + 61)
    take(store, beat(0, [10]), beat(999_999, [10]), number=2, received=BEGUN + 63)
    assert [(row.start - BEGUN, row.beats) for row in kept(store)] == [(0, 1), (60, 3)]
