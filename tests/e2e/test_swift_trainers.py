"""ms-swift's Hugging Face trainers really train on two SSH nodes, on CPU: real sshd, torchrun, `swift sft` and `rlhf`.

As in test_engines.py, each rank writes what it held and with whom (proof/). `make engines` installs ms-swift.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo import tiny_model
from tests.e2e.engine_checks import check_that_ranks_trained_together, check_what_each_rank_holds
from tests.e2e.engine_runs import STEPS, Case, DemoCluster, Outcome
from tests.nodes import skip_without_node_environment, ssh_nodes
from tools.programs import NODE_PYTHON, SWIFT, swift_python

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(1800)]

LORA = {"training.method": "lora", "training.learning_rate": 2e-2}
DPO = {"training.stage": "dpo", "training.dataset": "pairs.jsonl", "training.learning_rate": 1e-3}
KTO = {**DPO, "training.stage": "kto", "training.dataset": "judged.jsonl"}
PT = {"training.stage": "pt", "training.dataset": "text.jsonl", "training.template": None}
PLUGIN = Path(__file__).parent / "proof" / "reward_plugin.py"
# ms-swift 4.6.0 fails if a completion is empty, as an untrained model's may be. With these values none is.
GRPO = {
    "training.stage": "grpo",
    "training.dataset": "prompts.jsonl",
    "training.grpo.rewards": "digits,format",
    "training.grpo.plugin": str(PLUGIN),
    "training.grpo.group_size": 8,
    "training.grpo.completion_len": 24,
    "training.micro_batch_size": 4,
    "training.gradient_accumulation_steps": 2,
    "training.learning_rate": 2e-3,
}
DDP, ZERO2, ZERO3, FSDP = "swift-ddp", "swift-zero2", "swift-zero3", "swift-fsdp"

CASES = {
    "ddp-lora": Case(engine=DDP, values=LORA),
    "ddp-kto": Case(engine=DDP, values=KTO),
    "ddp-dpo": Case(engine=DDP, values=DPO),
    "ddp-rm": Case(engine=DDP, values={**DPO, "training.stage": "rm"}),
    "fsdp2": Case(engine=FSDP),
    "ddp": Case(engine=DDP),
    "ddp-pt": Case(engine=DDP, values=PT),
    "ddp-orpo": Case(engine=DDP, values={**DPO, "training.dpo.loss": "orpo"}),
    "ddp-simpo": Case(engine=DDP, values={**DPO, "training.dpo.loss": "simpo"}),
    "zero2": Case(engine=ZERO2),
    "zero3": Case(engine=ZERO3),
    "ddp-grpo": Case(engine=DDP, values=GRPO),
    "zero3-grpo": Case(engine=ZERO3, values=GRPO),
    "fsdp2-kto": Case(engine=FSDP, values=KTO),
}


def write_data(folder: Path) -> None:
    """Write data in ms-swift's formats: pairs, judged answers, prompts, and plain text."""
    rows = tiny_model.make_rows(200)
    answers = [row["output"] for row in rows]
    talks = [
        [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]
        for row in rows
    ]
    written: dict[str, list[dict[str, Any]]] = {
        "pairs.jsonl": [{"messages": talk, "rejected_response": other}
                        for talk, other in zip(talks, [*answers[1:], answers[0]], strict=True)
                        if talk[1]["content"] != other],
        "judged.jsonl": [{"messages": talk, "label": number % 2 == 0} for number, talk in enumerate(talks)],
        "prompts.jsonl": [{"messages": talk[:1], "solution": talk[1]["content"]} for talk in talks],
        "text.jsonl": [{"messages": [{"role": "assistant", "content": " ".join(row.values())}]} for row in rows],
    }  # fmt: skip
    for name, lines in written.items():
        (folder / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


class Runs:
    """A cache that runs each case once, at its first use."""

    def __init__(self, demo: DemoCluster) -> None:
        self.demo = demo
        self.outcomes: dict[str, Outcome] = {}

    def of(self, name: str) -> Outcome:
        if name not in self.outcomes:
            self.outcomes[name] = self.demo.run(name, CASES[name])
        outcome = self.outcomes[name]
        assert outcome.state == 0, outcome.output
        return outcome


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Runs]:
    skip_without_node_environment()
    if not swift_python():
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    with ssh_nodes(tmp_path_factory.mktemp("swift"), nodes=2) as cluster:
        demo = DemoCluster(cluster, tiny)
        write_data(demo.folder / tiny_model.DATA_FOLDER)
        yield Runs(demo)


COMPARED = """
import json, sys
from safetensors.torch import load_file
base, adapter, merged = (load_file(path) for path in sys.argv[1:4])
settings = json.load(open(sys.argv[4]))
name = "model.layers.0.self_attn.q_proj"
a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"].float() for part in "AB")
expected = base[f"{name}.weight"].float() + b @ a * settings["lora_alpha"] / settings["r"]
print(float((merged[f"{name}.weight"].float() - expected).abs().max()), float((b @ a).abs().max()))
"""


def test_adapters_are_exported_merged_into_their_model(runs: Runs) -> None:
    outcome = runs.of("ddp-lora")
    done = runs.demo.call("export", outcome.run)
    assert done.returncode == 0, done.stdout + done.stderr
    (exported,) = (runs.demo.folder / "out" / "exported").iterdir()
    files = [runs.demo.model("text") / "model.safetensors", outcome.last_checkpoint / "adapter_model.safetensors",
             exported / "model.safetensors", outcome.last_checkpoint / "adapter_config.json"]  # fmt: skip
    command = [str(NODE_PYTHON), "-c", COMPARED, *map(str, files)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert float(answer[0]) < 1e-5
    assert float(answer[1]) > 1e-4
    assert "swift.cli.main deploy" in done.stdout


@pytest.mark.parametrize("name", ["ddp", "ddp-grpo"])
def test_a_run_from_a_checkpoint_learns_what_the_first_one_learned(runs: Runs, name: str) -> None:
    """The checkpoint has the random numbers of each rank, so GRPO draws the same completions."""
    outcome = runs.of(name)
    first, again = outcome.steps[0][STEPS // 2 :], runs.demo.go_on(f"again-{name}", CASES[name], outcome, STEPS // 2)
    assert [row["step"] for row in again] == list(range(STEPS // 2 + 1, STEPS + 1))
    # The loss of GRPO is near 0: its gradient is what a step learns.
    for key, limits in {"loss": {"rel": 1e-4, "abs": 1e-6}, "grad_norm": {"rel": 1e-4}}.items():
        assert [row[key] for row in again] == pytest.approx([row[key] for row in first], **limits)
    for metric in ("reward", "completions/mean_length") if "grpo" in name else ():
        assert [row["metrics"][metric] for row in again] == [row["metrics"][metric] for row in first]


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_together_and_the_loss_falls_outside_of_grpo(runs: Runs, name: str) -> None:
    check_that_ranks_trained_together(runs.of(name), CASES[name].nodes, falls="grpo" not in name)


@pytest.mark.parametrize("name", ["ddp", "ddp-lora", "zero2", "zero3", "fsdp2", "ddp-grpo", "zero3-grpo"])
def test_ranks_hold_the_whole_model_or_equal_parts_of_it(runs: Runs, name: str) -> None:
    check_what_each_rank_holds(runs.of(name), CASES[name])


@pytest.mark.parametrize("name", ["zero2", "zero3", "fsdp2"])
def test_sharing_the_model_changes_nothing_of_what_is_learned(runs: Runs, name: str) -> None:
    assert runs.of(name).losses == pytest.approx(runs.of("ddp").losses, rel=1e-3)


def logged(outcome: Outcome, name: str) -> list[float]:
    """Return the values of a metric in the lines of rank 0, step by step."""
    lines = (outcome.nodes[0] / "steps.rank0.jsonl").read_text().splitlines()
    return [row["metrics"][name] for row in map(json.loads, lines) if name in row.get("metrics", {})]


def test_sharing_the_model_changes_neither_completions_nor_rewards(runs: Runs) -> None:
    """At the first step the policy equals the reference model, so a divergence would show a wrong reference."""
    shared, whole = runs.of("zero3-grpo"), runs.of("ddp-grpo")
    assert [logged(outcome, "kl")[0] for outcome in (whole, shared)] == pytest.approx([0, 0], abs=1e-6)
    for name in ("reward", "rewards/Digits/mean", "completions/mean_length", "kl"):
        assert logged(shared, name) == pytest.approx(logged(whole, name), rel=1e-3)


def test_the_model_learns_what_the_file_of_rewards_asks_for_and_the_store_has_it(runs: Runs) -> None:
    outcome = runs.of("ddp-grpo")
    rewards = logged(outcome, "rewards/Digits/mean")
    assert max(rewards[-2:]) > rewards[0]
    listed = json.loads(runs.demo.call("metrics", outcome.run, "--json").stdout)
    stored = {row["name"]: row["count"] for row in listed}
    names = ("reward", "reward_std", "kl", "rewards/Digits/mean", "rewards/Format/mean", "completions/mean_length")
    assert {name: stored[name] for name in names} == dict.fromkeys(names, STEPS)
