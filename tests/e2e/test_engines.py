"""Every Hugging Face engine trains on 2 to 4 nodes, its ranks together: real sshd, torchrun, LLaMA-Factory, on CPU.

An exit status of 0 and a falling loss do not show that: ranks that train apart have both. Each rank therefore writes
what it held and with whom (proof/). A few run in `make test`, all of them in `make engines`.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.demo import tiny_model
from backend.runs.database import Database
from tests.e2e.engine_checks import check_that_ranks_trained_together, check_what_each_rank_holds
from tests.e2e.engine_runs import EXTENSIONS, EXTRA, NODE_PYTHON, STEPS, Case, DemoCluster, Outcome
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.tiny_data import FEEDBACK, PREFERENCE, TEXT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LORA = {"training.method": "lora", "training.learning_rate": 2e-2}
QLORA = {**LORA, "training.method": "qlora"}
DPO = {"training.stage": "dpo", "training.dataset": PREFERENCE, "training.learning_rate": 1e-3}
ORPO = {**DPO, "training.dpo.loss": "orpo"}
SIMPO = {**DPO, "training.dpo.loss": "simpo"}
RM = {**DPO, "training.stage": "rm"}
PLAIN = {"use_reentrant_gc": False}
KTO = {**DPO, "training.stage": "kto", "training.dataset": FEEDBACK}
PT = {"training.stage": "pt", "training.dataset": TEXT, "training.template": None}
FSDP1 = {"parallel.fsdp.version": 1}
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
DDP, FSDP, ZERO2, ZERO3 = (f"llamafactory-{name}" for name in ("ddp", "fsdp", "zero2", "zero3"))

EVALUATED = {"training.eval_steps": STEPS // 2, "extra": {"eval_dataset": tiny_model.DATASET}}

PREPARED = "fsdp2-prepared"
ALWAYS = {PREPARED: Case(engine=FSDP, values={**EVALUATED, "training.prepare.shuffle": True})}
"""What `make test` runs; DDP trains in other tests, and ZeRO has to build DeepSpeed's C++ parts first."""

CASES = {
    **ALWAYS,
    "ddp-lora": Case(engine=DDP, values=LORA),
    "ddp": Case(engine=DDP),
    "ddp-4-nodes": Case(engine=DDP, nodes=4),
    "ddp-partial": Case(engine=DDP, values={"training.method": "partial", "training.trainable_layers": 1}),
    "ddp-qlora": Case(engine=DDP, values=QLORA, needs="bitsandbytes"),
    "ddp-dpo": Case(engine=DDP, values={**DPO, **EVALUATED, "extra": {"eval_dataset": PREFERENCE}}),
    "ddp-orpo": Case(engine=DDP, values=ORPO),
    "ddp-simpo": Case(engine=DDP, values=SIMPO),
    "ddp-kto": Case(engine=DDP, values={**KTO, **EVALUATED, "extra": {"eval_dataset": FEEDBACK}}),
    "ddp-kto-lora": Case(engine=DDP, values={**KTO, **LORA}),
    "ddp-rm": Case(engine=DDP, values={**RM, **EVALUATED, "extra": {**PLAIN, "eval_dataset": PREFERENCE}}),
    "ddp-pt": Case(engine=DDP, values=PT),
    "fsdp1": Case(engine=FSDP, values=FSDP1),
    "fsdp2": Case(engine=FSDP),
    "fsdp2-lora": Case(engine=FSDP, values=LORA),
    "fsdp1-lora": Case(engine=FSDP, values=LORA | FSDP1),
    "fsdp2-kto": Case(engine=FSDP, values=KTO),
    "fsdp2-dpo": Case(engine=FSDP, values=DPO),
    "fsdp2-partial": Case(engine=FSDP, values={"training.method": "partial", "training.trainable_layers": 1}),
    "fsdp1-qlora": Case(engine=FSDP, values=QLORA | FSDP1, needs="bitsandbytes"),
    "zero2": Case(engine=ZERO2, nodes=3),
    "zero2-lora": Case(engine=ZERO2, values=LORA),
    "zero2-qlora": Case(engine=ZERO2, values=QLORA, needs="bitsandbytes"),
    "zero2-offload": Case(engine=f"{ZERO2}-offload"),
    "zero3": Case(engine=ZERO3),
    "zero3-lora": Case(engine=ZERO3, values=LORA),
    "zero2-rm": Case(engine=ZERO2, values=RM),
    "zero3-kto": Case(engine=ZERO3, values=KTO),
    "zero3-rm": Case(engine=ZERO3, values=RM),
    "zero3-dpo": Case(engine=ZERO3, values=DPO),
    "zero3-pt": Case(engine=ZERO3, values=PT),
    "zero3-offload": Case(engine=f"{ZERO3}-offload"),
    "vision": Case(engine=DDP, model="vision", needs="torchvision"),
    "vision-frozen": Case(engine=DDP, model="vision", values=FROZEN, needs="torchvision"),
    "vision-fsdp2-frozen": Case(engine=FSDP, model="vision", values=FROZEN, needs="torchvision"),
    "vision-zero3-frozen": Case(engine=ZERO3, model="vision", values=FROZEN, needs="torchvision"),
}

TEXTS = """
import json, sys, datasets, tokenizers
tokenizer, rows = tokenizers.Tokenizer.from_file(sys.argv[2]), datasets.load_from_disk(sys.argv[1])["train"]
print(json.dumps([tokenizer.decode(row["input_ids"]) for row in rows]))
"""

ON_REQUEST = [pytest.param(name, marks=pytest.mark.engines) for name in CASES if name not in ALWAYS]


class Runs:
    """A cache that runs each case once, at its first use."""

    def __init__(self, demo: DemoCluster) -> None:
        self.demo = demo
        self.outcomes: dict[str, Outcome] = {}

    def of(self, name: str) -> Outcome:
        case = CASES[name]
        _skip_unless_possible(case)
        if name not in self.outcomes:
            self.outcomes[name] = self.demo.run(name, case)
        outcome = self.outcomes[name]
        assert outcome.state == 0, outcome.output
        return outcome


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Runs]:
    skip_without_node_environment()
    with ssh_nodes(tmp_path_factory.mktemp("engines"), nodes=4) as cluster:
        yield Runs(DemoCluster(cluster, tiny))


@pytest.mark.parametrize("name", [*ALWAYS, *ON_REQUEST])
def test_ranks_train_together_and_the_loss_falls(runs: Runs, name: str) -> None:
    check_that_ranks_trained_together(runs.of(name), CASES[name].nodes)


@pytest.mark.parametrize("name", [*ALWAYS, *ON_REQUEST])
def test_ranks_hold_the_whole_model_or_equal_parts_of_it(runs: Runs, name: str) -> None:
    outcome, case = runs.of(name), CASES[name]
    check_what_each_rank_holds(outcome, case)
    if "-zero" in case.engine:
        parts = [file.name for file in outcome.last_checkpoint.glob("global_step*/*zero_pp_rank_*_optim_states.pt")]
        assert len(parts) == case.nodes


def test_one_node_tokenises_before_the_run_and_all_ranks_load_it(runs: Runs) -> None:
    maker, waiter = runs.of(PREPARED).nodes
    assert "Running tokenizer on dataset" in (maker / "out.log").read_text()
    assert "Running tokenizer on dataset" not in (waiter / "out.log").read_text()
    logs = [next(node.glob("rank*.log")).read_text() for node in (maker, waiter)]
    assert not any("Running tokenizer on dataset" in log for log in logs)
    assert f"Loaded tokenized dataset from {tokenised(waiter)}" in logs[0]


def test_the_tokenised_data_are_every_row_once_in_the_order_of_the_seed(runs: Runs) -> None:
    data, folder = tokenised(runs.of(PREPARED).nodes[1]), runs.demo.folder
    record = json.loads((data / "megaboard.json").read_text())
    assert (record["shuffle"], record["megatron"]) == (42, False)
    before = [row["instruction"] for row in json.loads((folder / tiny_model.DATA_FOLDER / "demo.json").read_text())]
    command = [NODE_PYTHON, "-W", "ignore", "-c", TEXTS, data, runs.demo.model("text") / "tokenizer.json"]
    after = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    order = [next(number for number, text in enumerate(after) if f"user\n{question}" in text) for question in before]
    assert sorted(order) == list(range(len(before)))
    assert order != sorted(order)


def tokenised(node: Path) -> Path:
    """Return the folder of the tokenised data in the configuration of a node's run."""
    return Path(yaml.safe_load((node / "config.yaml").read_text())["tokenized_path"])


@pytest.mark.parametrize("name", [*ALWAYS, pytest.param("ddp-dpo", marks=pytest.mark.engines)])
def test_every_number_that_the_engine_or_a_callback_of_the_user_logs_is_in_the_store(runs: Runs, name: str) -> None:
    outcome = runs.of(name)
    database = Database.open(runs.demo.home / "megaboard.db")
    with database.read() as reader:
        metrics = reader.metrics(outcome.run)
        evaluated = reader.metric_values(metrics["eval_loss"])[0].tolist()
        nameless = reader.metric_values(metrics["proof/step"])
    database.close()
    assert evaluated == [STEPS // 2, STEPS]
    assert nameless[0].tolist() == nameless[1].tolist() == list(range(1, STEPS + 1))
    pairs = {"rewards/chosen", "rewards/margins", "eval_rewards/accuracies", "logps/rejected"}
    assert (pairs <= metrics.keys()) == name.endswith("dpo")


@pytest.mark.engines
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "zero2", "zero3", "ddp-qlora"])
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(runs: Runs, name: str) -> None:
    whole = runs.of(name).losses
    first = runs.demo.continue_plainly(f"resumed-{name}", CASES[name], STEPS // 2)
    both = runs.demo.continue_plainly(f"resumed-{name}", CASES[name], STEPS)
    losses = {row["current_steps"]: row["loss"] for row in both if "loss" in row}
    assert max(row["current_steps"] for row in first) == STEPS // 2
    steps = [row["current_steps"] for row in both[len(first) :] if "loss" in row]
    assert steps == list(range(STEPS // 2 + 1, STEPS + 1))
    assert [losses[step] for step in range(1, STEPS + 1)] == pytest.approx(whole, rel=1e-4)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "zero2-offload", "zero3", "zero3-offload"])
def test_sharing_the_model_changes_nothing_of_what_is_learned(runs: Runs, name: str) -> None:
    assert runs.of(name).losses == pytest.approx(runs.of("ddp").losses, rel=1e-3)


@pytest.mark.engines
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.model == "vision"])
def test_frozen_parts_of_a_vision_model_are_not_trained(runs: Runs, name: str) -> None:
    frozen = CASES[name].values == FROZEN
    for proof in runs.of(name).proofs:
        assert frozen != any("visual" in parameter for parameter in proof["trained"])
        assert any("language_model" in parameter for parameter in proof["trained"])


def _skip_unless_possible(case: Case) -> None:
    if case.needs and not (EXTRA / case.needs).exists():
        pytest.skip(f"{case.needs} is not in .venv-node/extra: `make engines` installs it")
    if "-zero" in case.engine:
        _build("deepspeed_shm_comm", "cpu.ShareMemCommBuilder")
    if "-offload" in case.engine:
        _build("cpu_adam", "CPUAdamBuilder")


def _build(name: str, builder: str) -> None:
    """Build DeepSpeed's C++ extensions once before the ranks start. Otherwise they would wait for each other."""
    if (EXTENSIONS / name / f"{name}.so").exists():
        return
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: DeepSpeed builds parts of itself with it")
    code = f"import deepspeed.ops.op_builder as parts; parts.{builder}().load()"
    environment = {"PATH": f"{NODE_PYTHON.parent}:/usr/bin:/bin", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)}
    done = subprocess.run(
        [NODE_PYTHON, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
