"""The step at which an attempt begins. Files that a node cannot see now are not taken as lost."""

import pytest

from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.runs.launch.resume import Checkpoints, ResumePolicy, choose_checkpoint, find_checkpoints
from backend.runs.store import run_store
from tests.engines.jobs import job
from tests.runs.conftest import RUN, Gang

WHOLE = ("trainer_state.json", "scheduler.pt", "optimizer.pt", "model.safetensors", "rng_state_0.pth",
         "rng_state_1.pth", "rng_state_2.pth")  # fmt: skip


def _begins(gang: Gang, *seen: dict[str, tuple[str, ...]]) -> int | None:
    """Return where an automatic restart begins if the nodes see these files of these steps."""
    for node, steps in zip(gang.nodes, seen, strict=True):
        checkpoints = {step: {"files": list(files), "damaged": []} for step, files in steps.items()}
        node.on("list", reply={"folder": "/out", "checkpoints": checkpoints})
    environments = "environments: {llamafactory: {python: /py}}, gpus_per_node"
    with_python = "UPDATE runs SET job = replace(job, 'gpus_per_node', ?) WHERE job NOT LIKE '%environments%'"
    gang.store.write(lambda connection: connection.execute(with_python, (environments,)))
    with gang.store.read() as connection:
        created = run_store.job_of(connection, RUN)
    checkpoints = find_checkpoints(created, RUN, dict(enumerate(gang.nodes)))
    return choose_checkpoint(created, RUN, checkpoints, ResumePolicy(at_start_without=True))


def test_a_restart_waits_for_a_node_whose_disk_is_not_there_yet(gang: Gang) -> None:
    assert _begins(gang, {"6": WHOLE}, {"6": WHOLE}, {"6": WHOLE}) == 6
    with pytest.raises(ProblemsError) as raised:
        _begins(gang, {"6": WHOLE}, {"6": WHOLE}, {})
    problem = raised.value.problems[0]
    assert (problem.code, problem.node) == ("checkpoint_incomplete", gang.nodes[2].name)


def test_a_restart_begins_at_the_start_without_a_checkpoint_or_when_the_first_was_cut(gang: Gang) -> None:
    assert _begins(gang, {}, {}, {}) is None
    assert _begins(gang, *[{"6": WHOLE[:-1]}] * 3) is None


def test_a_reward_model_starts_over_and_never_resumes() -> None:
    """LLaMA-Factory ignores its checkpoint, or dies while it loads the adapters."""
    reward_model = with_values(job(), {"training.stage": "rm", "engine": "llamafactory-zero2"})
    saved = Checkpoints(folder="/out", steps=(6,), flaws={}, newest=6, files={6: frozenset(WHOLE)}, hidden=False)
    assert choose_checkpoint(reward_model, RUN, saved, ResumePolicy(at_start_without=True)) is None
    with pytest.raises(ProblemsError) as raised:
        choose_checkpoint(reward_model, RUN, saved, ResumePolicy(step=6))
    assert raised.value.problems[0].code == "reward_model_not_resumed"
    of_swift = with_values(reward_model, {"engine": "swift-megatron"})
    assert choose_checkpoint(of_swift, RUN, saved, ResumePolicy(at_start_without=True)) == 6
