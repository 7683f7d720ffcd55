"""A loss or a gradient norm that rises above its level causes an alert, and noise does not."""

import random

import pytest

from backend.runs.diagnosis.loss_spikes import AGAIN_STEPS, BEFORE, LEAST_BEFORE, LEAST_SHARE, NEWEST, rise
from backend.runs.states import EventKind
from tests.runs.conftest import Gang

LOSS, NORM = LEAST_SHARE["loss"], LEAST_SHARE["grad_norm"]


def noisy(count: int, at: float = 1.5, spread: float = 0.15, seed: int = 1) -> list[float]:
    noise = random.Random(seed)
    return [noise.gauss(at, spread) for _ in range(count)]


def test_three_losses_far_above_the_fifty_before_are_a_rise() -> None:
    result = rise([*noisy(100), 4.1, 5.0, 6.2], LOSS)
    assert result is not None
    newest, usual = result
    assert newest == 5.0
    assert usual == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(
    "losses",
    [
        [*noisy(100), 9.0, 1.5, 9.0],
        [*noisy(100), 1.9, 1.9, 1.9],
        [*([0.5] * BEFORE), 0.55, 0.56, 0.57],
        [*noisy(LEAST_BEFORE - 1), 9.0, 9.0, 9.0],
        [4.0 - 0.04 * step for step in range(80)],
        [],
    ],
    ids=["single steps", "noise", "hardly varies", "too early", "falls", "none"],
)
def test_what_is_no_rise(losses: list[float]) -> None:
    assert rise(losses, LOSS) is None


def test_noise_alone_is_hardly_ever_taken_for_a_rise() -> None:
    """This is ten runs of a thousand steps with a small batch."""
    count = sum(
        any(rise(losses[: end + 1], LOSS) for end in range(BEFORE, len(losses)))
        for losses in (noisy(1000, spread=0.3, seed=seed) for seed in range(10))
    )
    assert count == 0


@pytest.mark.parametrize(
    "norms",
    [
        [*noisy(100), 28.0, 1.5, 1.6, 28.0],
        [*([0.5] * BEFORE), 1.4, 1.4, 1.4],
        [*noisy(100, spread=0.5), 4.0, 4.0, 4.0],
    ],
    ids=["spikes", "an epoch begins", "noise"],
)
def test_what_gradient_norms_do_in_trainings_that_go_well_is_no_rise(norms: list[float]) -> None:
    assert rise(norms, NORM) is None


def test_gradient_norms_that_stay_at_many_times_what_they_were_are_a_rise() -> None:
    result = rise([*noisy(100, spread=0.5), 9.0, 14.0, 30.0], NORM)
    assert result is not None
    assert result[0] == 14.0


def test_a_run_tells_of_a_gradient_norm_that_rose_while_its_loss_does_not(gang: Gang) -> None:
    norms = [*noisy(60), *([float("inf")] * 2), 9.0, 12.0, 15.0]
    for step, norm in enumerate(norms, 1):
        row = {"step": step, "time": float(step), "loss": 1.5, "grad_norm": norm}
        gang.write(0, "steps.rank0.jsonl", row)
    gang.collector().poll(gang.nodes[0])
    (message,) = [event for event in gang.events() if event.kind in (EventKind.LOSS_ROSE, EventKind.GRAD_NORM_ROSE)]
    assert (message.kind, message.detail["step"], message.detail["grad_norm"]) == (EventKind.GRAD_NORM_ROSE, 65, 12.0)
    assert message.detail["usual"] == pytest.approx(1.5, abs=0.1)


def test_a_run_tells_of_a_rise_once_and_of_another_one_much_later(gang: Gang) -> None:
    collector = gang.collector()
    step = 0

    def write(*losses: float) -> None:
        nonlocal step
        for loss in losses:
            step += 1
            gang.write(0, "steps.rank0.jsonl", {"step": step, "time": float(step), "loss": loss})
        collector.poll(gang.nodes[0])

    write(*noisy(60))
    write(*([5.0] * NEWEST))
    write(5.0)
    for number in range(AGAIN_STEPS // 10):
        write(*noisy(10, seed=number))
    write(*([7.0] * NEWEST))
    details = [event.detail for event in gang.events() if event.kind is EventKind.LOSS_ROSE]
    assert [(item["step"], item["loss"]) for item in details] == [(63, 5.0), (567, 7.0)]
    assert details[0]["usual"] == pytest.approx(1.5, abs=0.1)
