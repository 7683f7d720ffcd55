"""What every run of an engine must show: its ranks train together, and each holds its part of the model."""

import math

import pytest

from tests.e2e.engine_runs import STEPS, Case, Outcome


def check_that_ranks_trained_together(outcome: Outcome, ranks: int, *, falls: bool = True) -> None:
    """Assert that the ranks formed one group, reported the same steps, and, if it must, that the loss fell."""
    assert [proof["ranks"] for proof in outcome.proofs] == [ranks] * ranks
    assert [proof["engine_ranks"] for proof in outcome.proofs] == [ranks] * ranks
    for rows in outcome.steps:
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        # Reduced over the ranks: each reports the same, though each saw other samples.
        assert [row["loss"] for row in rows] == pytest.approx(outcome.losses, rel=1e-6)
        assert [row["grad_norm"] for row in rows] == pytest.approx([r["grad_norm"] for r in outcome.steps[0]], rel=1e-4)
    assert all(math.isfinite(loss) for loss in outcome.losses)
    assert not falls or sum(outcome.losses[-2:]) / 2 < outcome.losses[0]
    states = {file.name for file in outcome.last_checkpoint.glob("rng_state*")}
    assert states == {f"rng_state_{rank}.pth" for rank in range(ranks)}


def check_what_each_rank_holds(outcome: Outcome, case: Case) -> None:
    """Assert that each rank holds an equal part of the parameters if they are sharded, and else all of them."""
    whole = {proof["elements"] for proof in outcome.proofs}
    assert len(whole) == 1
    if case.engine.removesuffix("-offload").endswith(("-fsdp", "-zero3")):
        for proof in outcome.proofs:
            assert proof["kept"] == pytest.approx(proof["elements"] / case.nodes, rel=0.1)
    else:
        assert {proof["kept"] for proof in outcome.proofs} == whole
        assert len({round(proof["checksum"], 6) for proof in outcome.proofs}) == 1
