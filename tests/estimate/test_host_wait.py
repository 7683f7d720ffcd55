"""How long the GPU waits for the CPU, and the note that proposes a larger micro-batch."""

from typing import Any

import pytest

from backend.estimate import estimate, waits_for_host
from backend.estimate.time.host_wait import LONG_WAIT, host_wait_share
from backend.job.mapping import with_values
from tests.estimate.cases import job

SMALL = {
    "model.preset": "qwen3-0.6b",
    "engine": "llamafactory-ddp",
    "training.cutoff_len": 512,
    "training.gradient_accumulation_steps": 8,
}

NO_ROOM = {"cluster.nodes": 1, "cluster.gpus_per_node": 1, "model.preset": "qwen3-4b"}


def test_the_gpu_waits_less_the_more_tokens_a_micro_batch_has() -> None:
    jobs = [job(SMALL, training__micro_batch_size=size) for size in (1, 4, 16, 64)]
    shares = [host_wait_share(tried, estimate(tried)) for tried in jobs]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > LONG_WAIT
    assert 0 <= shares[-1] < LONG_WAIT


def test_a_wanted_global_batch_stays_and_the_note_changes_the_micro_batch_alone() -> None:
    wanted = job(SMALL, training__gradient_accumulation_steps=None, training__global_batch_size=256)
    [note] = waits_for_host(wanted, estimate(wanted))
    assert note.edit == {"training.micro_batch_size": 2}
    assert with_values(wanted, dict(note.edit)).global_batch == 256


def test_a_note_proposes_twice_the_micro_batch_with_the_same_global_batch() -> None:
    small = job(SMALL)
    figures = estimate(small)
    [note] = waits_for_host(small, figures)
    assert (note.code, note.severity) == ("larger_micro_batch_pays", "note")
    larger = with_values(small, dict(note.edit))
    assert larger.global_batch == small.global_batch
    assert larger.training.micro_batch_size == 2
    before, after = figures.iteration_s, estimate(larger).iteration_s
    assert before is not None
    assert after is not None
    assert after < before
    assert (note.values["seconds"], note.values["larger"]) == (f"{before:.2g}", f"{after:.2g}")


@pytest.mark.parametrize(
    ("edits", "codes"),
    [
        ({"training.gradient_accumulation_steps": 1}, ["gpu_waits_for_cpu"]),
        (NO_ROOM, ["gpu_waits_for_cpu"]),
        ({"training.cutoff_len": 16384}, []),
        ({"cluster.gpu": "cpu"}, []),
    ],
)
def test_the_note_has_no_button_where_none_helps_and_is_absent_if_the_gpu_is_busy(
    edits: dict[str, Any], codes: list[str]
) -> None:
    tried = job(SMALL, edits)
    notes = waits_for_host(tried, estimate(tried))
    assert [note.code for note in notes] == codes
    assert all(not note.edit for note in notes)
