"""Check whether a job can resume from a checkpoint of another job: which parts of the plan may differ.

Sources: mcore_adapter 0.10.0.dev0 models/model_factory.py (from_pretrained, distribute_config_match) and
trainer/utils.py (build_sharded_state_dict_metadata); ms-swift 4.6.0 swift/megatron/utils/megatron_lm_utils.py
(load_mcore_checkpoint); DeepSpeed 0.18.4 runtime/engine.py (_get_all_zero_checkpoint_names: the data-parallel size).
"""

from collections.abc import Iterable

from backend.job.job import Job
from backend.job.mapping import get_value
from backend.job.problems import Problem

_MODEL = ("model.preset", "model.hf_config")
_ADAPTERS = ("training.lora.rank", "training.lora.targets")
_RANKS = ("cluster.nodes", "cluster.gpus_per_node")
_MEGATRON = (
    "parallel.tensor",
    "parallel.pipeline",
    "parallel.virtual_pipeline",
    "parallel.expert",
    "parallel.expert_tensor",
    "parallel.account_for_embedding",
    "parallel.account_for_loss",
    "parallel.pipeline_layout",
)
_RESHARDABLE = {"llamafactory": "distrib_optim_fully_reshardable", "swift": "dist_ckpt_optim_fully_reshardable"}
"""The engine's own key in `extra` that makes an optimizer's state reshardable."""


def check_source(source: Job, job: Job, bound: Iterable[str]) -> list[Problem]:
    """Return why `job` cannot train from a checkpoint of `source` that requires these parts of its plan."""
    if source.engine != job.engine:
        values: dict[str, object] = {"engine": source.engine}
        edit: dict[str, object] = {"engine": source.engine}
        return [Problem(code="checkpoint_of_engine", field="engine", values=values, edit=edit)]
    fixed = [*_MODEL, "training.method", "parallel.distributed_optimizer" if source.traits.is_megatron else "engine"]
    if source.training.method in ("lora", "qlora"):
        fixed += _ADAPTERS
    different = [_fixed(source, job, path) for path in fixed]
    divided = [_bound(source, job, path) for path in bound]
    return [problem for problem in (*different, *divided) if problem is not None]


def bound_to(job: Job, files: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of the plan that must stay the same for a checkpoint of the job; none if it can be resharded."""
    if job.traits.zero_stage:
        return _RANKS
    if not job.traits.is_megatron or _is_reshardable(job, files):
        return ()
    return _MEGATRON


def _is_reshardable(job: Job, files: Iterable[str]) -> bool:
    """Return whether the weights are a distributed checkpoint, and the optimizer's state fits every sharding."""
    environment = job.traits.environment
    spread = environment == "swift" or any("/dist_model/" in file for file in files)
    optimizer = job.parallel.distributed_optimizer and job.extra.get(_RESHARDABLE[environment]) is True
    return spread and optimizer


def _fixed(source: Job, job: Job, path: str) -> Problem | None:
    source_value, value = get_value(source, path), get_value(job, path)
    if source_value == value:
        return None
    if path in _MODEL:
        return Problem(code="checkpoint_of_model", field=path)
    values = {"old": source_value, "new": value}
    return Problem(code="checkpoint_of_other", field=path, values=values, edit={path: source_value})


def _bound(source: Job, job: Job, path: str) -> Problem | None:
    source_value, value = get_value(source, path), get_value(job, path)
    if source_value == value:
        return None
    code = "checkpoint_bound_to_ranks" if path in _RANKS else "checkpoint_bound_to_plan"
    edit = {} if path in _RANKS else {path: source_value}
    return Problem(code=code, field=path, values={"old": source_value, "new": value}, edit=edit)
