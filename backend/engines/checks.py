"""Checks of what a job passes directly to its engine: `extra`, `environment`, options of containers and folders."""

import re
from dataclasses import replace
from typing import Any

from backend.engines.engine import Engine
from backend.engines.extra_keys import check_known
from backend.job.job import Job
from backend.job.job_secrets import check_containers, looks_secret
from backend.job.mapping import get_value, parameters, texts_in
from backend.job.patterns import PRINTABLE
from backend.job.problems import Problem

_KEY = re.compile(r"[a-z][a-z0-9_]{0,79}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Job files may have the engine's keys of these fields in `extra`, as before there were the fields.
_ALSO_IN_EXTRA = (
    "training.eval_size", "training.eval_dataset", "training.mix_strategy", "training.interleave_probs",
)  # fmt: skip
# Keys that the renderer derives, and that a job may replace: ms-swift's names of model, template and attention.
_REPLACED_IN_EXTRA = frozenset(("swift", key) for key in ("model_type", "template", "attn_impl", "lr_scheduler_kwargs"))

# Keys that would start something other than the plan, leave the run folder, or resume from a checkpoint that the run
# does not know. auto_find_batch_size: a rank out of memory restarts alone, with a smaller batch
# (accelerate/utils/memory.py).
_REFUSED_KEY = re.compile(
    r"auto_find_batch_size|deepspeed|do_eval|do_predict|fsdp|fsdp_.*|hub_.*|local_rank|logging_dir|master_addr|"
    r"master_port|overwrite_output_dir|predict_with_generate|pure_bf16|push_to_hub|ray_.*|resume_from_checkpoint|"
    r"tensorboard_dir|use_hyper_parallel|use_kt|use_mca|use_megatron_bridge|use_ray|use_unsloth|"
    r"device_map|deepspeed_autotp_size|resume_only_model|sequence_parallel_size"
)
# Variables that belong to torchrun, to the choice of the trainer, or to the supervisor.
_OWNED_VARIABLE = re.compile(
    r"ACCELERATE_(TORCH_DEVICE|USE_.*)|ALLOW_EXTRA_ARGS|FORCE_TORCHRUN|FSDP_.*|(GROUP|LOCAL|ROLE)_RANK|RANK|(LOCAL_)?WORLD_SIZE|"
    r"MASTER_ADDR|MASTER_PORT|(MIN_|MAX_)?NNODES|NODE_RANK|NPROC_PER_NODE|RDZV_ID|"
    r"USE_(HYPER_PARALLEL|KT|MCA|MEGATRON_BRIDGE|RAY|V1)|(MEGABOARD|PET|TORCHELASTIC)_.*"
)


def check_passed_on(job: Job, engine: Engine) -> list[Problem]:
    """Return every problem of the keys, variables and options that the job passes to its engine."""
    problems = [problem for key, value in job.extra.items() if (problem := _check_extra(job, key, value, engine))]
    problems += [problem for name, text in job.environment.items() if (problem := _check_variable(job, name, text))]
    problems += check_containers(job.cluster)
    problems += _check_folders(job)
    return problems + _check_evaluation(job)


def _check_evaluation(job: Job) -> list[Problem]:
    """Return the problems of the data for evaluation."""
    size, data, is_swift = job.training.eval_size, job.training.eval_dataset, job.traits.environment == "swift"
    if data and is_swift:
        edit: dict[str, object] = {"training.eval_dataset": None}
        return [Problem(code="eval_dataset_of_swift", field="training.eval_dataset", edit=edit)]
    if data and job.eval_size:
        return [Problem(code="eval_data_twice", field="training.eval_size", edit={"training.eval_size": None})]
    # LLaMA-Factory reads 1 as a share: all samples (0.9.5 src/llamafactory/data/data_utils.py, split_dataset).
    if size is not None and size >= 1 and (is_swift or size < 2 or size != int(size)):
        return [Problem(code="eval_size_bad", field="training.eval_size", edit={"training.eval_size": 0.01})]
    if job.training.eval_steps is not None and not (job.eval_size or job.eval_dataset):
        edit = {"training.eval_size": 0.01}
        return [Problem(code="eval_without_data", field="training.eval_steps", edit=edit)]
    return []


def _check_extra(job: Job, key: Any, value: Any, engine: Engine) -> Problem | None:
    path = _path_of(job, key, engine)
    # GRPO has losses of its own, for which the job has no field.
    is_shared = (
        (job.traits.environment, key) in _REPLACED_IN_EXTRA
        or (key == "loss_type" and job.training.stage == "grpo")
        or (path in _ALSO_IN_EXTRA and get_value(job, str(path)) == parameters()[str(path)].default)
    )
    code, values = _why_not_passed(key, value, engine, is_shared)
    values = {**values, "path": path} if code == "extra_owned" else values
    if code is None:
        return check_known(job, key, value)
    others = {name: value for name, value in job.extra.items() if name != key}
    return Problem(code=code, field=f"extra.{key}", values={"key": key, **values}, edit={"extra": others})


def _path_of(job: Job, key: Any, engine: Engine) -> str | None:
    """Return the job path that decides a key. DPO and GRPO share `beta`."""
    path = engine.owned.get(key) if isinstance(key, str) else None
    return "training.grpo.beta" if path == "training.dpo.beta" and job.training.stage == "grpo" else path


def _why_not_passed(
    key: Any, value: Any, engine: Engine, is_shared: bool = False
) -> tuple[str | None, dict[str, object]]:
    """Return the code of the problem with a key of `extra`, for any reader, and the values of its text."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return "extra_bad_key", {}
    if (path := engine.owned.get(key)) and not is_shared:
        return "extra_owned", {"path": path}
    if _REFUSED_KEY.fullmatch(key):
        return "extra_refused", {"engine": engine.name}
    if looks_secret(key, value):
        return "extra_secret", {}
    # llamafactory-cli reads its file with OmegaConf, which would replace `${name}` by another value.
    if any("${" in text or not re.fullmatch(PRINTABLE, text) for text in texts_in(value)):
        return "extra_bad_value", {}
    return None, {}


def _check_variable(job: Job, name: str, text: str) -> Problem | None:
    field = f"environment.{name}"
    problem = check_name(name, field)
    if problem is None and not re.fullmatch(PRINTABLE, text):
        problem = Problem(code="environment_bad", field=field, values={"name": name})
    if problem is None and looks_secret(name, text):
        problem = Problem(code="environment_secret", field=field, values={"name": name})
    if problem is None and name == "CUDA_VISIBLE_DEVICES" and _devices(text) < job.cluster.gpus_per_node:
        values = {"name": name, "visible": _devices(text), "wanted": job.cluster.gpus_per_node}
        problem = Problem(code="visible_gpus_too_few", field=field, values=values)
    others = {other: text for other, text in job.environment.items() if other != name}
    return problem and replace(problem, edit={"environment": others})


def _devices(text: str) -> int:
    """Return the number of GPUs that a value of CUDA_VISIBLE_DEVICES shows."""
    return len([part for part in text.split(",") if part.strip()])


def check_name(name: str, field: str) -> Problem | None:
    """Return why the ranks cannot have a variable of this name."""
    if not _VARIABLE.fullmatch(name):
        return Problem(code="environment_bad", field=field, values={"name": name})
    if _OWNED_VARIABLE.fullmatch(name):
        return Problem(code="environment_owned", field=field, values={"name": name})
    return None


def _check_folders(job: Job) -> list[Problem]:
    """Return a problem for each folder that begins with `~`: LLaMA-Factory would not expand it."""
    folders = {
        "model.path": job.model.path,
        "training.dataset_dir": job.training.dataset_dir,
        "training.output_dir": job.training.output_dir,
    }
    return [
        Problem(code="home_not_expanded", field=field, values={"path": path})
        for field, path in folders.items()
        if path and path.startswith("~")
    ]
