"""Completeness of checkpoints. The lists of files are those that the engines wrote in `make engines`."""

import itertools

import pytest

from backend.engines.checkpoints import MEGATRON, Flaw, Saved, first_flaw, needed, newest_complete
from backend.job.job import Job
from backend.job.mapping import with_values
from tests.cluster.jobs import make_job

COMMON = ("trainer_state.json", "scheduler.pt", "training_args.bin", "rng_state_0.pth", "rng_state_1.pth")
WRITTEN = {
    "llamafactory-ddp": (*COMMON, "model.safetensors", "config.json", "optimizer.pt"),
    "llamafactory-fsdp": (*COMMON, "model.safetensors", "pytorch_model_fsdp.bin", "optimizer.bin"),
    "llamafactory-zero2": (
        *(*COMMON, "model.safetensors", "latest", "zero_to_fp32.py", "global_step6/mp_rank_00_model_states.pt"),
        *(f"global_step6/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
    ),
    "llamafactory-zero3": (
        *(*COMMON, "model.safetensors", "latest"),
        *(f"global_step6/zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in (0, 1)),
        *(f"global_step6/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
    ),
    "llamafactory-megatron": (
        *(*COMMON, "mca_config.json", "latest_checkpointed_iteration.txt"),
        f"{MEGATRON}/mp_rank_00/model_optim_rng.pt",
        *(f"{MEGATRON}/dist_optimizer/{file}" for file in (".metadata", "common.pt", "__0_0.distcp", "__1_0.distcp")),
    ),
    "swift-megatron": (
        "latest_checkpointed_iteration.txt",
        *(f"iter_0000006/{file}" for file in ("common.pt", ".metadata", "metadata.json", "__0_0.distcp")),
    ),
}
SPARE = {"training_args.bin", "config.json", "zero_to_fp32.py", "metadata.json", "model.safetensors"}


def _job(engine: str, **values: object) -> Job:
    parts = {"cluster": {"environments": {"swift": {"python": "/py"}}}} if engine.startswith("swift") else {}
    return with_values(make_job(engine=engine, **parts), values)


def _seen(*files: str, nodes: int = 2, step: int = 6) -> dict[int, dict[int, Saved]]:
    return {rank: {step: Saved(files=frozenset(files))} for rank in range(nodes)}


@pytest.mark.parametrize("engine", WRITTEN)
def test_what_an_engine_wrote_is_complete_and_without_any_needed_file_it_is_not(engine: str) -> None:
    job, files = _job(engine), WRITTEN[engine]
    assert newest_complete(job, _seen(*files)) == 6
    for file in files:
        remainder = [other for other in files if other != file]
        needless = file.rpartition("/")[2] in SPARE and not (engine.endswith("ddp") and file == "model.safetensors")
        needless |= engine.endswith("megatron") and file.endswith(("dist_optimizer/common.pt", ".distcp"))
        assert (newest_complete(job, _seen(*remainder)) == 6) is needless, file


@pytest.mark.parametrize("engine", WRITTEN)
def test_a_disk_of_its_own_needs_what_its_ranks_load_and_no_more(engine: str) -> None:
    job, files = _job(engine), frozenset(WRITTEN[engine])
    files_seen = _seen(*files)
    files_seen[1][6] = Saved(
        files=frozenset(files - {"rng_state_0.pth", "global_step6/zero_pp_rank_0_mp_rank_00_optim_states.pt"})
    )
    assert newest_complete(job, files_seen) == 6
    for lacking in ("trainer_state.json", "latest_checkpointed_iteration.txt"):
        if lacking in files:
            files_seen[1][6] = Saved(files=files - {lacking})
            assert first_flaw(job, 6, files_seen) == Flaw(rank=1, file=lacking, damaged=False)


def test_every_part_of_a_distributed_checkpoint_must_be_seen_by_every_node() -> None:
    job, files = _job("llamafactory-megatron"), frozenset(WRITTEN["llamafactory-megatron"])
    part = f"{MEGATRON}/dist_optimizer/__1_0.distcp"
    files_seen = _seen(*files)
    files_seen[0][6] = Saved(files=files - {part})
    assert first_flaw(job, 6, files_seen) == Flaw(rank=0, file=part, damaged=False)


def test_the_newest_complete_one_is_taken_not_the_newest() -> None:
    job, whole = _job("llamafactory-ddp"), Saved(files=frozenset(WRITTEN["llamafactory-ddp"]))
    cut = Saved(files=whole.files, damaged=("optimizer.pt",))
    half = Saved(files=whole.files - {"rng_state_1.pth"})
    observed = {rank: {2: whole, 4: whole, 6: cut, 8: half} for rank in (0, 1)}
    del observed[1][4]
    assert newest_complete(job, observed) == 2
    flaws = {step: first_flaw(job, step, observed) for step in (4, 6, 8)}
    assert flaws[4] == Flaw(rank=1, file="trainer_state.json", damaged=False)
    assert flaws[6] == Flaw(rank=0, file="optimizer.pt", damaged=True)
    assert flaws[8] == Flaw(rank=1, file="rng_state_1.pth", damaged=False)
    assert newest_complete(job, {0: {}, 1: {}}) is None


def test_adapters_stand_for_the_weights_they_are_trained_beside() -> None:
    job = _job("llamafactory-ddp", **{"training.method": "lora"})
    files = {*WRITTEN["llamafactory-ddp"]} - {"model.safetensors"}
    assert newest_complete(job, _seen(*files)) is None
    assert newest_complete(job, _seen(*files, "adapter_model.safetensors")) == 6


def test_megatron_folders_of_all_ranks_are_those_that_megatron_names() -> None:
    """8 ranks: TP 2, PP 2, so DP 2; the folder has the tensor and the pipeline rank."""
    values = {"cluster.gpus_per_node": 4, "parallel.tensor": 2, "parallel.pipeline": 2}
    job = _job("llamafactory-megatron", **values)
    places = [
        {file for choice in needed(job, 1, [rank], frozenset()) for file in choice if "mp_rank" in file}
        for rank in range(job.world_size)
    ]
    names = [
        f"{MEGATRON}/mp_rank_{t:02d}_{p:03d}/model_optim_rng.pt" for p, _, t in itertools.product((0, 1), repeat=3)
    ]
    assert places == [{name} for name in names]


def test_one_rank_alone_keeps_its_random_state_without_a_number() -> None:
    job = make_job(nodes=1)
    assert ("rng_state.pth",) in needed(job, 1, [0], frozenset())
