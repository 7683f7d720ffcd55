"""ms-swift's Hugging Face trainers really train on two SSH nodes, on CPU: real sshd, torchrun, `swift sft` and `rlhf`.

As in test_engines.py, each rank writes what it held and with whom (proof/). `make engines` installs ms-swift.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.engine_runs import STEPS, Case, Outcome, Site
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.programs import SWIFT, swift_python

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800)]

LORA = {"training.method": "lora", "training.learning_rate": 2e-2}

CASES = {
    "ddp": Case(engine="swift-ddp"),
    "ddp-lora": Case(engine="swift-ddp", values=LORA),
    "zero2": Case(engine="swift-zero2"),
    "zero3": Case(engine="swift-zero3"),
    "fsdp2": Case(engine="swift-fsdp"),
}


class Runs:
    """A cache that runs each case once, at its first use."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.outcomes: dict[str, Outcome] = {}

    def of(self, name: str) -> Outcome:
        if name not in self.outcomes:
            self.outcomes[name] = self.site.run(name, CASES[name])
        outcome = self.outcomes[name]
        assert outcome.state == 0, outcome.output
        return outcome


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Runs]:
    skip_without_node_environment()
    if not swift_python():
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    with ssh_nodes(tmp_path_factory.mktemp("swift"), nodes=2) as cluster:
        yield Runs(Site(cluster, tiny))


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_together_and_the_loss_falls(runs: Runs, name: str) -> None:
    outcome, ranks = runs.of(name), CASES[name].nodes
    assert [proof["ranks"] for proof in outcome.proofs] == [ranks] * ranks
    assert [proof["engine_ranks"] for proof in outcome.proofs] == [ranks] * ranks
    for rows in outcome.steps:
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert [row["loss"] for row in rows] == pytest.approx(outcome.losses, rel=1e-6)
        assert [row["grad_norm"] for row in rows] == pytest.approx([r["grad_norm"] for r in outcome.steps[0]], rel=1e-4)
    assert all(math.isfinite(loss) for loss in outcome.losses)
    assert sum(outcome.losses[-2:]) / 2 < outcome.losses[0]
    states = {file.name for file in outcome.last_checkpoint.glob("rng_state*")}
    assert states == {f"rng_state_{rank}.pth" for rank in range(ranks)}
