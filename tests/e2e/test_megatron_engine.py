"""LLaMA-Factory on Megatron-Core really trains on four nodes, on CPU ranks (proof/megatron_on_cpu.py).

mcore_adapter is only on GitHub (alibaba/ROLL). Without its source these tests are skipped.
"""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from tests.e2e.engine_runs import STEPS, Case, DemoCluster, Outcome
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.programs import MCORE_ADAPTER, mcore_adapter_source
from tools.tiny_data import PREFERENCE

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800)]

COMMON = {"training.precision": "bf16", "training.learning_rate": 2e-3, "parallel.distributed_optimizer": False}
BY_FOUR = {**COMMON, "parallel.tensor": 2, "parallel.pipeline": 2}
# TP would train vision parts wrongly: test_vision_gradients.py.
STAGES = {**COMMON, "parallel.pipeline": 2}
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
UNEQUAL = {**BY_FOUR, "parallel.pipeline_layout": "Ett|L"}
# Two pairs a step would not show in six steps what is learned.
DPO = {
    "training.stage": "dpo",
    "training.dataset": PREFERENCE,
    "training.learning_rate": 1e-3,
    "training.gradient_accumulation_steps": 8,
}
EXPERTS = {**COMMON, "parallel.expert": 2}
PREDICTING = {**STAGES, "extra": {"mtp_num_layers": 1}}

WANTED = {
    "tp2-pp2": (4, BY_FOUR, "text", {"tensor": 2, "pipeline": 2, "expert": 1, "data": 1}),
    "tp2-dp2": (4, {**COMMON, "parallel.tensor": 2}, "text", {"tensor": 2, "pipeline": 1, "expert": 1, "data": 2}),
    "dpo": (2, {**COMMON, **DPO, "parallel.tensor": 2}, "text", {"tensor": 2, "pipeline": 1, "expert": 1, "data": 1}),
    "vision": (2, STAGES, "vision", {"tensor": 1, "pipeline": 2, "expert": 1, "data": 1}),
    "vision-frozen": (4, STAGES | FROZEN, "vision", {"tensor": 1, "pipeline": 2, "expert": 1, "data": 2}),
    "unequal-stages": (4, UNEQUAL, "text", {"tensor": 2, "pipeline": 2, "expert": 1, "data": 1}),
    "experts": (2, EXPERTS, "experts", {"tensor": 1, "pipeline": 1, "expert": 2, "data": 2}),
    "predicting": (2, PREDICTING, "predicting", {"tensor": 1, "pipeline": 2, "expert": 1, "data": 1}),
}
"""Name -> nodes, plan, model, and the sizes of the groups that Megatron must make of them."""


class Runs:
    """A cache that runs each case once, at its first use."""

    def __init__(self, demo: DemoCluster, source: str) -> None:
        self.demo = demo
        self.source = source
        self.outcomes: dict[str, Outcome] = {}

    def case(self, name: str) -> Case:
        nodes, values, model, _ = WANTED[name]
        source = self.with_equal_names() if name == "predicting" else self.source
        # dynamo cannot trace functions that stand for others.
        variables = {"MEGATRON_ON_CPU": "1", "TORCHDYNAMO_DISABLE": "1"}
        return Case(
            engine="llamafactory-megatron",
            nodes=nodes,
            values=values,
            model=model,
            needs="torchvision" if model == "vision" else "",
            environment=variables,
            paths=[source],
        )

    def with_equal_names(self) -> str:
        """Return a copy of mcore_adapter that loads layers for multi-token prediction
        (docs/upstream-mcore-adapter-mtp.md)."""
        copy = self.demo.folder / "mcore_adapter_with_equal_names"
        if not copy.exists():
            shutil.copytree(self.source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            file = copy / "mcore_adapter" / "models" / "converter" / "convert_utils.py"
            file.write_text(file.read_text().replace("mtp_model_layer", "transformer_layer"))
        return str(copy)

    def of(self, name: str) -> Outcome:
        if name not in self.outcomes:
            self.outcomes[name] = self.demo.run(name, self.case(name))
        assert self.outcomes[name].state == 0, self.outcomes[name].output
        return self.outcomes[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Runs]:
    source = mcore_adapter_source()
    if not source:
        pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL, not on PyPI)")
    skip_without_node_environment()
    with ssh_nodes(tmp_path_factory.mktemp("megatron"), nodes=4) as cluster:
        yield Runs(DemoCluster(cluster, tiny), source)


@pytest.mark.parametrize("name", WANTED)
def test_ranks_train_together_in_the_groups_of_the_plan(runs: Runs, name: str) -> None:
    outcome, (nodes, _, _, groups) = runs.of(name), WANTED[name]
    assert [proof["ranks"] for proof in outcome.proofs] == [nodes] * nodes
    assert [proof["groups"] for proof in outcome.proofs] == [groups] * nodes
    for rows in outcome.steps:
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert [row["loss"] for row in rows] == pytest.approx(outcome.losses, rel=1e-6)
    assert all(math.isfinite(loss) for loss in outcome.losses)
    assert sum(outcome.losses[-2:]) / 2 < outcome.losses[0]
    states = {file.name for file in outcome.last_checkpoint.glob("rng_state*")}
    assert states == {f"rng_state_{rank}.pth" for rank in range(nodes)}


@pytest.mark.parametrize("name", ["vision", "vision-frozen"])
def test_frozen_parts_of_a_vision_model_are_not_trained(runs: Runs, name: str) -> None:
    first = runs.of(name).proofs[0]["trained"]
    assert any("vision_model.blocks" in parameter for parameter in first) == (name == "vision")
    assert any("decoder" in parameter for parameter in first)


def test_a_layer_for_multi_token_prediction_is_trained_on_the_last_stage(runs: Runs) -> None:
    outcome = runs.of("predicting")
    predicting = [[name for name in proof["trained"] if name.startswith("mtp.")] for proof in outcome.proofs]
    assert predicting[0] == []
    assert any("eh_proj" in name for name in predicting[1])
    config = json.loads((runs.demo.model("predicting") / "config.json").read_text())
    layers = model_layers(parse_model(config), megatron=True, mtp=1)
    plan = Plan(sequence_length=64, micro_batches=1, pipeline=2)
    held = [rank_parameters(layers, plan, stage, Trained()) for stage in stages(layers, plan)]
    assert [proof["elements"] for proof in outcome.proofs] == [each.dense + each.expert for each in held]


def test_unequal_stages_hold_their_layers_and_learn_what_equal_ones_learn(runs: Runs) -> None:
    unequal, equal = runs.of("unequal-stages"), runs.of("tp2-pp2")
    assert unequal.losses == pytest.approx(equal.losses, rel=1e-2)
    held = [{name.split(".layers.")[1].split(".")[0] for name in proof["trained"] if ".layers." in name}
            for proof in unequal.proofs]  # fmt: skip
    assert [len(layers) for layers in held] == [2, 2, 0, 0]


def test_a_distributed_optimizer_is_saved_and_goes_on(runs: Runs) -> None:
    """By the plain scripts: the preflight refuses this torch (distributed_save_fails).

    Without Transformer Engine, megatron-core loses the step of Adam (docs/upstream-megatron-core.md); proof/ mends it.
    """
    case = replace(runs.case("tp2-dp2"), values={**COMMON, "parallel.distributed_optimizer": True}, nodes=2)
    whole = [row["loss"] for row in runs.demo.continue_plainly("sharded-whole", case, STEPS) if "loss" in row]
    first = runs.demo.continue_plainly("sharded", case, STEPS // 2)
    both = runs.demo.continue_plainly("sharded", case, STEPS)
    assert [row["current_steps"] for row in both[len(first) :] if "loss" in row] == [4, 5, 6]
    losses = [row["loss"] for row in both if "loss" in row]
    assert losses == pytest.approx(whole, rel=1e-3)


def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(runs: Runs) -> None:
    whole, case = runs.of("tp2-pp2").losses, runs.case("tp2-pp2")
    first = runs.demo.continue_plainly("resumed", case, STEPS // 2)
    both = runs.demo.continue_plainly("resumed", case, STEPS)
    losses = [row["loss"] for row in both if "loss" in row]
    assert [row["current_steps"] for row in both[len(first) :] if "loss" in row] == [4, 5, 6]
    assert losses == pytest.approx(whole, rel=1e-3)
