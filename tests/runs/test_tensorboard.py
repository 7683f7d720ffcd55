"""Scalars of TensorBoard event files, as torch's SummaryWriter writes them."""

import struct
import subprocess
from pathlib import Path

import pytest

from backend.runs.collect.collector import Collector
from backend.runs.collect.node_files import RecordFile
from backend.runs.collect.tensorboard import MOST_RECORD_BYTES, _masked_crc, read_events
from backend.runs.store import logged_metrics
from tests.nodes import skip_without_node_environment
from tests.runs.conftest import RUN, Gang
from tools.programs import NODE_PYTHON

WRITE = """
import sys, numpy
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    for step in (1, 2, 300):
        writer.add_scalar("train/loss", 2.0 / step, step, walltime=1.7e9 + step)
        writer.add_scalar("grpo/reward", step, step, walltime=1.7e9 + step, new_style=True)
    writer.add_text("args", "text " * 100)
    writer.add_histogram("weights", numpy.arange(100), 2)
    writer.add_image("big", numpy.random.rand(3, 600, 600), 3)
    writer.add_scalar("eval/loss", float("nan"), 301)
    writer.add_scalars("pairs", {"chosen": 1.0}, 301)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an event file of the real writer."""
    skip_without_node_environment()
    folder: Path = tmp_path_factory.mktemp("events")
    subprocess.run([str(NODE_PYTHON), "-c", WRITE, str(folder)], check=True, capture_output=True)
    [file] = folder.glob("events.out.tfevents.*")
    return file.read_bytes()


@pytest.mark.slow
def test_the_scalars_of_the_real_writer_are_read_and_nothing_else(written: bytes) -> None:
    rows, used, bad = read_events(written, 0)
    assert (used, bad.number) == (len(written), 0)
    values = {row["step"]: row["metrics"] for row in rows}
    assert values[300]["train/loss"] == pytest.approx(2 / 300)
    assert values[2] == {"train/loss": 1.0, "grpo/reward": 2.0}
    assert {name for metrics in values.values() for name in metrics} == {"train/loss", "grpo/reward", "eval/loss"}
    assert values[301]["eval/loss"] != values[301]["eval/loss"]
    assert rows[0]["time"] == 1.7e9 + 1


@pytest.mark.slow
def test_a_file_is_read_in_parts_of_any_size_and_an_image_is_passed_over(gang: Gang, written: bytes) -> None:
    name = "runs/a/events.out.tfevents.1.node.1.0"
    source = (RecordFile(file=name, kind="tensorboard"),)
    collector = Collector(gang.store, RUN, 1, gang.records[0], (), gang.clock, external_sources=source)
    assert len(written) > MOST_RECORD_BYTES, "the image is a long record"
    for end in [*range(1, len(written), 10_007), len(written)]:
        gang.nodes[0].files[f"/r/node0/{name}"] = written[:end]
        collector.poll(gang.nodes[0])
    with gang.store.read() as connection:
        rows = {row.name: (row.count, row.last_step) for row in logged_metrics.series_rows(connection, RUN)}
    assert rows == {"train/loss": (3, 300), "grpo/reward": (3, 300), "eval/loss": (1, 301)}


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", _masked_crc(head)) + data + b"\0\0\0\0"


MINUS_ONE = b"\xff" * 9 + b"\x01"
ONE_SCALAR = b"\x2a\x0b\x0a\x09\x0a\x02ab\x15\0\0\0\0"


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\xff\xff\x03", b"\xff" * 20, b"\x0f", b"\x10" + MINUS_ONE + ONE_SCALAR]
)
def test_a_broken_record_is_counted_and_the_next_one_is_read(data: bytes) -> None:
    good = record(b"\x09" + struct.pack("<d", 5.0) + b"\x10\x07\x2a\x0b\x0a\x09\x0a\x02ab\x15" + struct.pack("<f", 1.5))
    rows, used, bad = read_events(record(data) + good + good[:9], 0)
    assert [(row["step"], row["metrics"]) for row in rows] == [(7, {"ab": 1.5})]
    assert (bad.number, used) == (1, len(record(data)) + len(good))


def test_a_file_without_records_is_counted_once_and_passed_over() -> None:
    assert read_events(b"no event file" * 9, 0)[1:] == (117, (1, "byte 0", "no TFRecord"))
