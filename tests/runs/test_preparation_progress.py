"""The last progress bar in the log shows the progress of the data. A run with steps no longer waits for data."""

import pytest

from backend.runs.records import Preparing
from backend.runs.view.preparation_progress import read_progress
from tests.runs.conftest import Gang

# As LLaMA-Factory 0.9.5 with datasets 4.0.0 printed it.
READING = (
    b"Generating train split: 0 examples [00:00, ? examples/s]\nGenerating train split: 512 examples [00:00, 1.00]"
)
CONVERTING = b"\rConverting format of dataset:   0%|          | 0/512 [00:00<?, ? examples/s]"
ONE = b"\rRunning tokenizer on dataset: 100%|\xe2\x96\x88\xe2\x96\x88| 512/512 [00:00<00:00, 7483.69 examples/s]"
MANY = b"\rRunning tokenizer on dataset (num_proc=16):  35%|\xe2\x96\x88  | 350/1000 [00:09<00:17, 37.1 examples/s]"
SAVING = b"\rSaving the dataset (0/1 shards):   0%|          | 0/512 [00:00<?, ? examples/s]"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"", Preparing(stage="starting")),
        (b"loading file tokenizer.json: 3", Preparing(stage="starting")),
        (READING, Preparing(stage="reading", done=512)),
        (READING + CONVERTING, Preparing(stage="converting", done=0, total=512)),
        (READING + CONVERTING + MANY, Preparing(stage="tokenising", done=350, total=1000)),
        (ONE, Preparing(stage="tokenising", done=512, total=512)),
        (ONE + b"\ntraining example:\ninput_ids:\n[1, 2]\n" + SAVING, Preparing(stage="saving", done=0, total=512)),
        (ONE[:-3], Preparing(stage="tokenising", done=512, total=512)),
        (MANY + b"\nmegaboard: the data is ready: /runs/tokenized/abc\n", None),
    ],
)
def test_the_last_bar_says_how_far_it_is(log: bytes, expected: Preparing | None) -> None:
    assert read_progress(log) == expected


def test_a_run_shows_how_far_its_data_is_until_the_first_step(gang: Gang) -> None:
    prepares = "training: {prepare: {tokenize: true}}\n"
    gang.store.write(lambda connection: connection.execute("UPDATE runs SET job = job || ?", (prepares,)))
    gang.nodes[0].files["/r/node0/out.log"] = MANY
    gang.collector().poll(gang.nodes[0])
    assert gang.snapshot().preparing == Preparing(stage="tokenising", done=350, total=1000)
    gang.write(0, "steps.rank0.jsonl", {"step": 1, "time": 1})
    gang.collector().poll(gang.nodes[0])
    assert gang.snapshot().preparing is None


def test_a_run_that_prepares_nothing_waits_for_nothing(gang: Gang) -> None:
    gang.nodes[0].files["/r/node0/out.log"] = MANY
    gang.collector().poll(gang.nodes[0])
    assert gang.snapshot().preparing is None
