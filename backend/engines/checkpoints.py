"""The files that a checkpoint must have before a run can resume from it.

A rank that is killed while it saves leaves a folder without its file, and trainers load the newest folder as it is.
Every node must see what all ranks load and what its own ranks load. So it does not matter whether the disk is shared.

Sources: transformers 5.6.0 trainer.py (_save_checkpoint, _load_from_checkpoint, _load_optimizer_and_scheduler),
DeepSpeed 0.18.4 runtime/engine.py (_get_ckpt_name, _get_rank_zero_ckpt_name, load_checkpoint), accelerate 1.11.0
utils/fsdp_utils.py, mcore_adapter 0.10.0.dev0 checkpointing.py and trainer/trainer.py, ms-swift 4.6.0
swift/megatron/utils/megatron_lm_utils.py (save_mcore_checkpoint).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backend.job.job import Job

Choice = tuple[str, ...]
"""Paths below the checkpoint's folder; one of them must exist."""

WEIGHTS: Choice = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""A whole model as transformers saves it."""
_ADAPTER: Choice = ("adapter_model.safetensors", "adapter_model.bin")
_METADATA = ".metadata"
"""Metadata file: torch.distributed.checkpoint renames it into place when every rank has written its part."""
_PART = ".distcp"
MEGATRON = "iter_0000001"
"""Iteration folder: mcore_adapter writes every checkpoint as Megatron's first iteration, in its own folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One checkpoint as one node sees it."""

    files: frozenset[str]
    """Paths below its folder."""
    damaged: tuple[str, ...] = ()
    """The files that were not written to their end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """Reason why a checkpoint cannot be used."""

    rank: int
    """The node that reports it."""
    file: str
    damaged: bool
    """Whether the file is truncated; otherwise it is missing."""


def newest_complete(job: Job, by_node: Mapping[int, Mapping[int, Saved]]) -> int | None:
    """Return the last step whose checkpoint is complete on every node.

    `by_node`: node rank -> step -> the checkpoint as the node sees it.
    """
    complete = (step for step in all_steps(by_node) if first_flaw(job, step, by_node) is None)
    return max(complete, default=None)


def all_steps(by_node: Mapping[int, Mapping[int, Saved]]) -> list[int]:
    """Return the steps with a checkpoint on any node, complete or not, in order."""
    return sorted({step for steps in by_node.values() for step in steps})


def first_flaw(job: Job, step: int, by_node: Mapping[int, Mapping[int, Saved]]) -> Flaw | None:
    """Return what the checkpoint of a step lacks on the first node that lacks something; None if it is complete."""
    nothing = Saved(files=frozenset())
    saved = {rank: steps.get(step, nothing) for rank, steps in by_node.items()}
    parts = {file for checkpoint in saved.values() for file in checkpoint.files if file.endswith(_PART)}
    size = job.cluster.gpus_per_node
    for rank, checkpoint in sorted(saved.items()):
        if checkpoint.damaged:
            return Flaw(rank=rank, file=checkpoint.damaged[0], damaged=True)
        own_ranks = range(rank * size, (rank + 1) * size)
        for choice in (*needed(job, step, own_ranks, checkpoint.files), *((part,) for part in sorted(parts))):
            if checkpoint.files.isdisjoint(choice):
                return Flaw(rank=rank, file=choice[0], damaged=False)
    return None


def needed(job: Job, step: int, ranks: Iterable[int], files: frozenset[str]) -> list[Choice]:
    """Return what a node with these global ranks must see. `files` show which of an engine's formats was written."""
    if job.traits.is_megatron and job.traits.environment == "swift":
        folder = f"iter_{step:07d}"
        return [("latest_checkpointed_iteration.txt",), (f"{folder}/common.pt",), (f"{folder}/{_METADATA}",)]
    # With a single rank, the name of the random state has no rank.
    state = [f"rng_state_{rank}.pth" for rank in ranks] if job.world_size > 1 else ["rng_state.pth"]
    choices: list[Choice] = [("trainer_state.json",), ("scheduler.pt",), *((file,) for file in state)]
    if job.traits.is_megatron:
        return choices + _megatron(job, ranks, files)
    if job.traits.zero_stage:
        return choices + _deepspeed(job, step, ranks)
    if job.traits.is_fsdp:
        model = ("pytorch_model_fsdp.bin", f"pytorch_model_fsdp_0/{_METADATA}")
        return [*choices, model, ("optimizer.bin", f"optimizer_0/{_METADATA}")]
    return [*choices, _ADAPTER if job.training.method in ("lora", "qlora") else WEIGHTS, ("optimizer.pt",)]


def _deepspeed(job: Job, step: int, ranks: Iterable[int]) -> list[Choice]:
    """Return the needs of DeepSpeed.

    `latest` names the folder. Each rank loads its own part of the optimizer, with ZeRO-3 also of the weights.
    """
    folder = f"global_step{step}"
    choices: list[Choice] = [("latest",)]
    if job.traits.zero_stage < 3:
        choices.append((f"{folder}/mp_rank_00_model_states.pt",))
    for rank in ranks:
        part = f"zero_pp_rank_{rank}_mp_rank_00"
        if job.traits.zero_stage == 3:
            choices.append((f"{folder}/{part}_model_states.pt",))
        choices.append((f"{folder}/{part}_optim_states.pt", f"{folder}/bf16_{part}_optim_states.pt"))
    return choices


def _megatron(job: Job, ranks: Iterable[int], files: frozenset[str]) -> list[Choice]:
    """Return the needs of mcore_adapter: `legacy` weights by model-parallel rank, or a distributed checkpoint."""
    choices: list[Choice] = [("mca_config.json",), ("latest_checkpointed_iteration.txt",)]
    folders = sorted({_model_parallel_folder(job, rank) for rank in ranks})
    if any(file.startswith(f"{MEGATRON}/dist_model/") for file in files):
        choices.append((f"{MEGATRON}/dist_model/{_METADATA}",))
    else:
        choices += [(f"{MEGATRON}/{folder}/model_optim_rng.pt",) for folder in folders]
    if job.parallel.distributed_optimizer:
        return [*choices, (f"{MEGATRON}/dist_optimizer/{_METADATA}",)]
    return choices + [(f"{MEGATRON}/{folder}/optimizer.pt",) for folder in folders]


def _model_parallel_folder(job: Job, rank: int) -> str:
    """Return mp_rank_TT[_PPP][_EEE] of a global rank.

    Megatron's order is tensor, context, data, pipeline, and for experts tensor, expert, data, pipeline (megatron-core
    0.16.1 parallel_state.py).
    """
    parallel = job.parallel
    stage, rank_in_stage = divmod(rank, job.world_size // parallel.pipeline)
    name = f"mp_rank_{rank_in_stage % parallel.tensor:02d}"
    if parallel.pipeline > 1:
        name += f"_{stage:03d}"
    if parallel.expert > 1:
        name += f"_{rank_in_stage // parallel.expert_tensor % parallel.expert:03d}"
    return name
