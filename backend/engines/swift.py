"""A job in the ms-swift keys that its Megatron and its Hugging Face trainers share.

Keys and defaults: ms-swift 4.6.0 swift/arguments and swift/megatron/arguments, as in the wheel on PyPI. Its command
line reads the same config.yaml (swift/cli/main.py parse_yaml_args), and accepts no null.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from backend.engines.engine import Target
from backend.engines.keys import carried
from backend.engines.swift_models import swift_model
from backend.job.mixing import OF_SWIFT, mixing_of
from backend.job.problems import Problem

_COMMANDS: Mapping[str, str] = {"sft": "sft", "pt": "pt", "rm": "rlhf", "dpo": "rlhf", "kto": "rlhf", "grpo": "rlhf"}
_OWN_TRAINERS = ("orpo", "simpo")
"""Losses of DPO that ms-swift has as kinds of RLHF."""


def swift_command(target: Target) -> str:
    """Return the command: `sft`, `pt` or `rlhf`."""
    return _COMMANDS[target.job.training.stage]


def method_config(target: Target) -> dict[str, object]:
    """Return the keys of the model, the kind of RLHF, and what is trained."""
    job, training = target.job, target.job.training
    config: dict[str, object] = {"model": job.model.path}
    if model := swift_model(target):
        config |= {"model_type": model.model_type, "template": model.template}
    if swift_command(target) == "rlhf":
        config["rlhf_type"] = training.dpo.loss if _has_own_trainer(target) else training.stage
    if training.stage in ("dpo", "kto"):
        config |= _carried(target, "training.dpo.beta")
    if training.stage == "dpo" and not _has_own_trainer(target):
        config |= _carried(target, "training.dpo.loss")
    config["tuner_type"] = "full" if training.method == "full" else "lora"
    if training.method in ("lora", "qlora"):
        targets = training.lora.targets
        modules = ["all-linear"] if targets == "all" else targets.split(",")
        config |= {**_carried(target, "training.lora.rank", "training.lora.alpha"), "target_modules": modules}
    if target.shape.vision:
        config |= _carried(
            target, "training.freeze.language_model", "training.freeze.vision_tower", "training.freeze.projector"
        )
    return config


def _has_own_trainer(target: Target) -> bool:
    return target.job.training.stage == "dpo" and target.job.training.dpo.loss in _OWN_TRAINERS


def data_config(target: Target) -> dict[str, object]:
    """Return the keys of the data."""
    config: dict[str, object] = {
        **_data_sets(target),
        **_carried(
            target,
            "training.cutoff_len",
            "training.packing",
            "training.workers.preprocessing",
            "training.workers.data_loader",
        ),
    }
    mixing = mixing_of(target.job)
    if target.job.training.mix_strategy in OF_SWIFT and mixing.shares:
        config |= {"interleave_prob": list(mixing.shares), "stopping_strategy": OF_SWIFT[mixing.strategy]}
    return config | (_carried(target, "training.image_max_pixels") if target.shape.vision else {})


def _data_sets(target: Target) -> dict[str, object]:
    """Return the data sets: files, and folders that `swift export --to_cached_dataset` wrote."""
    training = target.job.training
    names = data_names(training.dataset)
    kinds = {
        "dataset": [name for name in names if not name.endswith("/")],
        "cached_dataset": [name for name in names if name.endswith("/")],
    }
    paths = {key: dataset_paths(",".join(chosen), training.dataset_dir) for key, chosen in kinds.items() if chosen}
    return {**(paths or {"dataset": []})}


def data_names(names: str | None) -> list[str]:
    """Return the single names. A name that ends in `/` is the folder of a cached data set."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def dataset_paths(names: str | None, folder: str | None) -> list[str]:
    """Return the paths of the data: ms-swift has no dataset_info.json, so each name is a path below the data folder."""
    return [str(PurePosixPath(folder or "", name)) for name in data_names(names)]


def records_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the keys of what is written, and of the held-out data."""
    training = target.job.training
    config: dict[str, object] = {
        "output_dir": output_dir,
        # Without it the results go to a subfolder with a date in its name.
        "add_version": False,
        "logging_steps": training.logging_steps,
        "save_steps": training.save_steps,
        "ddp_timeout": training.ddp_timeout_s,
    }
    if training.eval_steps is not None:
        config["eval_steps"] = training.eval_steps
    return config | _carried(target, "training.eval_size", "training.save_total_limit")


def swift_notes(target: Target) -> tuple[Problem, ...]:
    """Return notes on where every program of ms-swift differs from the job."""
    named, model = target.job.training.template, swift_model(target)
    template = target.job.extra.get("template", model.template if model else None)
    if model is None and template is None:
        values: dict[str, object] = {"path": target.job.model.path}
        return (Problem(code="swift_model_unknown", field="model.path", severity="note", values=values),)
    if not named or named == template:
        return ()
    values = {"template": named, "used": template}
    return (Problem(code="swift_template", field="training.template", severity="note", values=values),)


def _carried(target: Target, *paths: str) -> dict[str, object]:
    return carried(target.job, "swift", *paths)
