"""Steps read out of logs that LLaMA-Factory and Megatron-LM wrote by themselves."""

import json
from typing import Any

import pytest

from backend.cluster.inventory.heartbeat import parse_heartbeat
from backend.runs.collect.collector import Collector
from backend.runs.collect.external_logs import megatron_rows, trainer_log_rows, with_metrics
from backend.runs.collect.node_files import RecordFile
from backend.runs.collect.node_records import TrainerLine, read_lines
from backend.runs.records import Point
from backend.runs.store import logged_metrics
from tests.runs.conftest import RUN, Gang

LOG = "/r/node0/trainer_log.jsonl"

# Written by LLaMA-Factory 0.9.5 (the seconds made larger): training, evaluation, the summary at the end.
TRAINER_LOG = b"""\
{"current_steps": 2, "total_steps": 8, "loss": 5.69, "lr": 9.6e-05, "epoch": 0.27, "percentage": 25.0, "elapsed_time": "0:00:10", "remaining_time": "0:00:30", "throughput": 76.8, "total_tokens": 768}
{"current_steps": 4, "total_steps": 8, "loss": 5.66, "lr": 6.9e-05, "epoch": 0.53, "percentage": 50.0, "elapsed_time": "0:00:14", "remaining_time": "0:00:14", "throughput": 109.7, "total_tokens": 1536}
{"current_steps": 4, "total_steps": 8, "eval_loss": 5.64, "epoch": 0.53, "percentage": 50.0, "elapsed_time": "0:00:15", "remaining_time": "0:00:15", "throughput": 102.4, "total_tokens": 1536}
{"current_steps": 8, "total_steps": 8, "epoch": 1.0, "percentage": 100.0, "elapsed_time": "1 day, 0:00:30", "remaining_time": "0:00:00"}
"""  # noqa: E501

# As megatron/training/training.py writes it, of two versions.
MEGATRON = b"""\
[default7]: [2025-11-02 10:11:12] iteration        1/     100 | consumed samples:           16 | elapsed time per iteration (ms): 9876.5 | learning rate: 1.000000E-05 | global batch size:    16 | lm loss: 1.093852E+01 | loss scale: 1.0 | grad norm: 2.317 | number of skipped iterations:   0 |
 iteration        2/     100 | consumed samples:           32 | elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 210.1 | learning rate: 2.000000E-05 | lm loss: nan | grad norm: 3.5 |
a line of something else: iteration is a word | loss: 3 |
 iteration        4/     100 | elapsed time per iteration (ms): 1500.0 | lm loss: 9.5E+00 |
"""  # noqa: E501


def watched(gang: Gang, *sources: RecordFile) -> Collector:
    """Reads the files of somebody's own training."""
    files = sources or (RecordFile(file="trainer_log.jsonl", kind="trainer_log"),)
    return Collector(gang.store, RUN, 1, gang.records[0], (), gang.clock, external_sources=files)


def line(step: int, *, loss: float = 1.0, elapsed: int | None = None) -> bytes:
    seconds = step if elapsed is None else elapsed
    row = {"current_steps": step, "total_steps": 9, "loss": loss, "elapsed_time": f"0:00:{seconds:02}"}
    return json.dumps({**row, "total_tokens": 100 * step}).encode() + b"\n"


def by_step(gang: Gang) -> list[Point]:
    return sorted(gang.points(), key=lambda point: point.step)


def _lines(data: bytes):  # type: ignore[no-untyped-def]
    return read_lines(data, TrainerLine, with_metrics).rows


def test_trainer_log_tells_steps_their_time_and_their_tokens() -> None:
    before: dict[str, Any] = {}
    first, second, evaluation = trainer_log_rows(
        _lines(TRAINER_LOG[: TRAINER_LOG.index(b'{"current_steps": 8')]), 1000.0, before
    )
    assert evaluation == {"step": 4, "time": 1000.0, "metrics": {"eval_loss": 5.64, "throughput": 102.4}}
    assert first["metrics"] == {"throughput": 76.8}
    assert (first["step"], first["total_steps"], first["loss"], first["learning_rate"]) == (2, 8, 5.69, 9.6e-05)
    assert "step_s" not in first
    assert (second["step"], second["time"], second["step_s"], second["tokens"]) == (4, 999.0, 2.0, 384)
    assert first["time"] == 995.0
    line = b'{"current_steps": 6, "total_steps": 8, "loss": 5.5, "elapsed_time": "0:00:20", "total_tokens": 2304}\n'
    assert trainer_log_rows(_lines(line), 1006.0, before)[0]["step_s"] == 3.0, "the line before came in another poll"


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"current_steps": "x", "loss": 1}', b'{"loss": 1}', b"\xff\xfe\n"]
)
def test_a_line_that_is_none_of_its_own_is_passed_over(line: bytes) -> None:
    assert trainer_log_rows(_lines(line), 1.0, {}) == []
    assert megatron_rows(line, 1.0) == []


@pytest.mark.parametrize(
    "odd",
    [
        b'{"current_steps": 5, "loss": 1, "total_tokens": "7"}',
        b'{"current_steps": 5, "loss": NaN, "total_tokens": -Infinity, "elapsed_time": 7}',
        b'{"current_steps": 5, "loss": "nan", "lr": [], "epoch": 1' + 400 * b"0" + b', "total_tokens": NaN}',
        b'{"current_steps": -5, "loss": 1}',
        b'{"current_steps": true, "loss": 1}',
        b'{"current_steps": 2.5, "loss": 1}',
        b'{"current_steps": 1' + 30 * b"0" + b', "loss": 1}',
        b"[" * 100_000,
    ],
)
def test_an_odd_line_stops_no_later_one(gang: Gang, odd: bytes) -> None:
    collector = watched(gang)
    gang.nodes[0].files[LOG] = line(4) + odd + b"\n" + line(6) + line(7)
    collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points() if point.step != 5] == [4, 6, 7]
    assert gang.points()[-1].tokens == 100


def test_numbers_of_any_name_and_evaluations_are_stored_as_metrics(gang: Gang) -> None:
    collector = watched(gang, *(RecordFile(file=name, kind=kind) for name, kind in (
        ("trainer_log.jsonl", "trainer_log"), ("a.log", "megatron_log"))))  # fmt: skip
    gang.nodes[0].files[LOG] = TRAINER_LOG + b'{"current_steps": 8, "mine/score": 0.5, "odd": "text", "yes": true}\n'
    gang.nodes[0].files["/r/node0/a.log"] = b" iteration 9/ 9 | lm loss: 1.0 | mtp_1 loss: 2.5E+00 |\n"
    collector.poll(gang.nodes[0])
    with gang.store.read() as connection:
        stored = {row.name: row.last for row in logged_metrics.series_rows(connection, RUN)}
    assert stored == {"throughput": 109.7, "eval_loss": 5.64, "mine/score": 0.5, "mtp_1 loss": 2.5}
    assert [point.step for point in by_step(gang)] == [2, 4, 9]


def test_a_training_that_went_on_from_a_checkpoint_replaces_the_steps_behind_it(gang: Gang) -> None:
    """LLaMA-Factory appends to the log that is there; its seconds begin anew."""
    collector = watched(gang)
    gang.nodes[0].files[LOG] = b"".join(line(step, loss=1.0) for step in range(1, 8))
    collector.poll(gang.nodes[0])
    gang.nodes[0].files[LOG] += line(5, loss=2.0, elapsed=1)
    collector.poll(gang.nodes[0])
    assert [(point.step, point.loss) for point in by_step(gang)] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
    gang.nodes[0].files[LOG] += line(6, loss=2.0, elapsed=2) + line(6, loss=3.0, elapsed=2) + line(2, loss=4.0)
    collector.poll(gang.nodes[0])
    assert [(point.step, point.loss) for point in by_step(gang)] == [(1, 1), (2, 4)]
    assert gang.points()[-1].step == 2, "the page takes back by the order in which points came"


def test_a_new_training_in_the_same_folder_is_read_from_its_first_step(gang: Gang) -> None:
    collector = watched(gang)
    gang.nodes[0].files[LOG] = b"".join(line(step) for step in range(1, 8))
    collector.poll(gang.nodes[0])
    gang.nodes[0].files[LOG] = line(1, loss=9.0)
    collector.poll(gang.nodes[0])
    assert [(point.step, point.loss) for point in by_step(gang)] == [(1, 9.0)]


def test_the_same_lines_in_two_logs_are_one_training(gang: Gang) -> None:
    collector = watched(
        gang, RecordFile(file="a.log", kind="megatron_log"), RecordFile(file="b.log", kind="megatron_log")
    )
    for log in ("a.log", "b.log"):
        gang.nodes[0].files[f"/r/node0/{log}"] = MEGATRON
    collector.poll(gang.nodes[0])
    assert [(point.seq, point.step) for point in gang.points()] == [(1, 1), (2, 2), (3, 4)]


def test_megatrons_lines_tell_steps_and_their_time() -> None:
    first, second, third = megatron_rows(MEGATRON, 1000.0)
    assert (first["step"], first["total_steps"], first["step_s"]) == (1, 100, 9.8765)
    assert (first["loss"], first["grad_norm"], first["learning_rate"]) == (10.93852, 2.317, 1e-05)
    assert second["loss"] != second["loss"]
    assert second["metrics"] == {"consumed samples": 32, "throughput per GPU (TFLOP/s/GPU)": 210.1}
    assert (third["step"], third["loss"], third["time"], second["time"], first["time"]) == (4, 9.5, 1000, 997, 995)


def test_a_glance_is_a_heartbeat_of_what_the_node_tells() -> None:
    lines = [
        "0.52 0.58 0.59 3/602 12345",
        "MemTotal:       65843564 kB",
        "MemAvailable:   41234000 kB",
        "/dev/nvme0n1p2     959786032 402653184 508309692      45% /",
        "0, 97, 70123, 81559, 612.31, 64, 1980, 0x0000000000000004",
        "1, [N/A], 1, 81559, [N/A], 31, 345, 0x0000000000000001",
    ]
    beat = parse_heartbeat(lines)
    assert (beat["load1"], beat["memory_total_mib"], beat["disk_free_mib"]) == (0.52, 64300, 496396)
    assert beat["gpus"][0] == {"index": 0.0, "utilization": 97.0, "memory_used_mib": 70123.0,
                               "memory_total_mib": 81559.0, "power_w": 612.31, "temperature_c": 64.0,
                               "clock_mhz": 1980.0, "clock_limits": 4.0}  # fmt: skip
    assert beat["gpus"][1]["utilization"] is None
    assert parse_heartbeat([])["gpus"] == []
