"""Changes of a job that resumes from another job's checkpoint are judged before anything starts."""

import pytest

from backend.engines.checkpoints import MEGATRON
from backend.engines.resharding import bound_to, check_source
from backend.job.job import Job
from backend.job.mapping import with_values
from tests.cluster.jobs import make_job

LEGACY = (f"{MEGATRON}/mp_rank_00/model_optim_rng.pt", f"{MEGATRON}/dist_optimizer/.metadata")
SPREAD = (f"{MEGATRON}/dist_model/.metadata", f"{MEGATRON}/dist_optimizer/.metadata")
ANEW = {"distrib_optim_fully_reshardable": True}


def _job(engine: str, **values: object) -> Job:
    parts = {"cluster": {"environments": {"swift": {"python": "/py"}}}} if engine.startswith("swift") else {}
    return with_values(make_job(nodes=4, engine=engine, **parts), values)


def _codes(before: Job, files: tuple[str, ...], **changes: object) -> list[tuple[str, str]]:
    source = check_source(before, with_values(before, changes), bound_to(before, files))
    return [(problem.code, problem.field) for problem in source]


@pytest.mark.parametrize(
    "engine", ["llamafactory-ddp", "llamafactory-zero3", "llamafactory-fsdp", "llamafactory-megatron", "swift-megatron"]
)
def test_what_shapes_no_file_may_change(engine: str) -> None:
    changes = {"training.micro_batch_size": 2, "training.learning_rate": 1e-6, "parallel.recompute": "full"}
    assert _codes(_job(engine), LEGACY, **changes, name="other") == []


def test_a_model_parallel_plan_is_bound_to_its_checkpoints_and_the_old_value_is_offered() -> None:
    before = _job("llamafactory-megatron", **{"parallel.tensor": 2})
    changes = {"parallel.tensor": 1, "parallel.pipeline": 2}
    assert _codes(before, LEGACY, **changes) == [
        ("checkpoint_bound_to_plan", "parallel.tensor"),
        ("checkpoint_bound_to_plan", "parallel.pipeline"),
    ]
    (problem,) = check_source(before, with_values(before, {"parallel.tensor": 4}), bound_to(before, LEGACY))
    assert (problem.edit, problem.values["old"], problem.values["new"]) == ({"parallel.tensor": 2}, 2, 4)
    assert _codes(before, LEGACY, **{"cluster.nodes": 8}) == [], "data parallelism may change"


def test_a_checkpoint_that_can_be_divided_anew_fits_every_plan() -> None:
    changes = {"parallel.tensor": 4, "parallel.pipeline": 2}
    whole = _job("llamafactory-megatron", extra=ANEW)
    assert _codes(whole, SPREAD, **changes) == []
    assert len(_codes(whole, LEGACY, **changes)) == 2, "its weights are divided"
    assert len(_codes(_job("llamafactory-megatron"), SPREAD, **changes)) == 2, "its optimizer is divided"
    assert _codes(whole, SPREAD, **{"parallel.distributed_optimizer": False}) == [
        ("checkpoint_of_other", "parallel.distributed_optimizer")
    ]
    swift = _job("swift-megatron", extra={"dist_ckpt_optim_fully_reshardable": True})
    assert _codes(swift, (), **changes) == []


def test_zero_needs_as_many_ranks_and_the_others_do_not() -> None:
    more = {"cluster.nodes": 8}
    assert _codes(_job("llamafactory-zero2"), (), **more) == [("checkpoint_bound_to_ranks", "cluster.nodes")]
    assert _codes(_job("llamafactory-ddp"), (), **more) == []
    assert _codes(_job("llamafactory-fsdp"), (), **more) == []


def test_another_engine_model_or_method_is_refused() -> None:
    before = _job("llamafactory-ddp", **{"training.method": "lora"})
    assert _codes(before, (), engine="llamafactory-zero2") == [("checkpoint_of_engine", "engine")]
    assert _codes(before, (), **{"model.preset": "qwen3-8b"}) == [("checkpoint_of_model", "model.preset")]
    assert _codes(before, (), **{"training.method": "full"}) == [("checkpoint_of_other", "training.method")]
    assert _codes(before, (), **{"training.lora.rank": 64}) == [("checkpoint_of_other", "training.lora.rank")]
