"""Keys of ms-swift's Megatron: the inverse of backend/engines/swift_megatron.py.

Sources: ms-swift 4.6.0 swift/megatron/arguments; names of 3.x: its docs/source_en/Megatron-SWIFT of version 3.12.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from backend.engines.importing.dialect import Dialect
from backend.engines.importing.readers import (
    Read,
    preset_of,
    read_layout,
    read_modules,
    read_output,
    read_reports,
    read_shares,
    read_timeout,
)
from backend.engines.importing.report import because, refused
from backend.engines.keys import DTYPES
from backend.engines.swift_megatron import SCHEDULERS
from backend.job.mixing import OF_SWIFT
from backend.job.patterns import NODE_PATH
from backend.job.rules.swift import MAX_STREAMING_LOADERS

_KINDS = ("rm", "dpo", "kto")
_FULL_RATE, _LORA_RATE = 1e-5, 1e-4
"""ms-swift's learning rate if none is given (megatron_args.py _set_default)."""
_PRECISIONS = {dtype: precision for precision, dtype in DTYPES.items()}


def refuse_other_swift(config: Mapping[str, Any], verb: str) -> None:
    """Raise ProblemsError if ms-swift's Megatron cannot train it: other kinds of RLHF, tasks and tuners."""
    refuse_other(config, verb, _KINDS, tuner="full")


def refuse_other(config: Mapping[str, Any], verb: str, kinds: Collection[str], tuner: str) -> None:
    """Raise ProblemsError for other kinds of RLHF, tasks and tuners. `tuner` is the program's default."""
    kind = str(config.get("rlhf_type", "dpo"))
    if kind not in kinds and verb in ("", "rlhf"):
        raise refused("import_stage", "rlhf_type", stage=kind)
    task = str(config.get("task_type", "causal_lm"))
    if task != "causal_lm":
        raise refused("import_swift_task", "task_type", task=task)
    tuner = str(config.get("tuner_type", tuner))
    quantization = config.get("quant_method")
    if tuner not in ("full", "lora") or (quantization and (tuner, quantization) != ("lora", "bnb")):
        shown = tuner if not quantization else f"{tuner}, quant_method: {quantization}"
        raise refused("import_swift_tuner", "tuner_type", tuner=shown)
    if config.get("model") is None:
        raise refused("import_swift_model", "model")


def swift_values(config: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """Return the values of the job that the command decides."""
    command = verb or ("rlhf" if "rlhf_type" in config else "sft")
    return {"training.stage": str(config.get("rlhf_type", "dpo")) if command == "rlhf" else command}


def _model(config: Mapping[str, Any], value: Any) -> Read:
    path = str(value)
    values: dict[str, Any] = {"model.preset": preset} if (preset := preset_of(path)) else {}
    if re.fullmatch(NODE_PATH, path):
        return Read(values={**values, "model.path": path})
    return Read(values=values, reason=because("import_hub_name", "model", name=path))


def _data(config: Mapping[str, Any], value: Any) -> Read:
    """Read the data: files, and folders of tokenised data. The job has one folder and the names in it.

    Names on a hub have no place there.
    """
    files, folders = _listed(config.get("dataset")), _listed(config.get("cached_dataset"))
    names = [*files, *folders]
    if not names:
        return Read(values={"training.dataset": None})
    if not all(re.fullmatch(NODE_PATH, name) for name in names):
        return Read(reason=because("import_swift_data", "dataset", names=", ".join(names)))
    common = _common_folder(names)
    shown = [str(PurePosixPath(name).relative_to(common)) for name in names]
    shown = [*shown[: len(files)], *(f"{name}/" for name in shown[len(files) :])]
    return Read(values={"training.dataset_dir": common, "training.dataset": ",".join(shown)})


def _listed(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list | tuple) else [value]) if item]


def _common_folder(names: list[str]) -> str:
    parents = [PurePosixPath(name).parent.parts for name in names]
    common = parents[0]
    for parts in parents[1:]:
        length = next((n for n, (a, b) in enumerate(zip(common, parts, strict=False)) if a != b), None)
        common = common[: min(len(common), len(parts)) if length is None else length]
    return str(PurePosixPath(*common))


def read_swift_precision(config: Mapping[str, Any], value: Any) -> Read:
    """Read the precision. ms-swift trains fp16 if torch_dtype alone is float32 (arguments/base_args/model_args.py)."""
    dtype = _PRECISIONS[str(config.get("torch_dtype") or "bfloat16")]
    bf16, fp16 = config.get("bf16"), config.get("fp16")
    if fp16 or (fp16 is None and not bf16 and dtype in ("fp16", "fp32")):
        reason = because("import_swift_fp32", "torch_dtype") if dtype == "fp32" and fp16 is None else None
        return Read(values={"training.precision": "fp16"}, reason=reason)
    is_bf16 = bf16 or (bf16 is None and dtype == "bf16")
    return Read(values={"training.precision": "bf16" if is_bf16 else "fp32"})


def _targets(config: Mapping[str, Any], value: Any) -> Read:
    names = [str(name) for name in (value if isinstance(value, list | tuple) else [value])]
    if "all-linear" not in names:
        return Read(values={"training.lora.targets": ",".join(names)})
    others = [name for name in names if name != "all-linear"]
    reason = because("import_swift_targets", "target_modules", names=", ".join(others)) if others else None
    return Read(values={"training.lora.targets": "all"}, reason=reason)


def _rate(config: Mapping[str, Any], value: Any) -> Read:
    return read_rate(config, value, "full")


def read_rate(config: Mapping[str, Any], value: Any, tuner: str) -> Read:
    """Read the learning rate, whose default depends on the tuner. `tuner` is the program's default."""
    default = _FULL_RATE if config.get("tuner_type", tuner) == "full" else _LORA_RATE
    return Read(values={"training.learning_rate": default if value is None else value})


def _schedule(config: Mapping[str, Any], value: Any) -> Read:
    """Read the schedule. With a lowest rate above 0, the job has the cosine that ends at a tenth of the rate."""
    schedulers = {style: name for name, style in reversed(tuple(SCHEDULERS.items()))}
    name = schedulers[str(value)]
    if name == "constant" and (config.get("lr_warmup_fraction") or config.get("lr_warmup_iters")):
        name = "constant_with_warmup"
    lowest = config.get("min_lr") or 0.0
    if name == "cosine" and lowest > 0:
        name = "cosine_with_min_lr"
    return Read(values={"training.lr_scheduler": name})


def _lowest_rate(config: Mapping[str, Any], value: Any) -> Read:
    rate = _rate(config, config.get("lr")).values["training.learning_rate"]
    scheduler = _schedule(config, config.get("lr_decay_style", "cosine"))
    if not value or abs(value - rate / 10) < 1e-9 * rate:
        return scheduler
    return Read(values=scheduler.values, reason=because("import_min_lr", "min_lr", min_lr=value, rate=rate))


def _steps(config: Mapping[str, Any], value: Any) -> Read:
    """Read the number of steps. If both are given, ms-swift counts epochs (arguments/megatron_args.py init_iters)."""
    if config.get("num_train_epochs") is not None:
        return Read(reason=because("import_swift_epochs", "train_iters") if value is not None else None)
    return Read(values={"training.max_steps": value})


def _epochs(config: Mapping[str, Any], value: Any) -> Read:
    return Read(values={} if value is None else {"training.num_train_epochs": value, "training.max_steps": None})


def _warmup_fraction(config: Mapping[str, Any], value: Any) -> Read:
    if value is None and config.get("lr_warmup_iters"):
        return Read()
    return Read(values={"training.warmup_ratio": value or 0.0})


def _warmup_steps(config: Mapping[str, Any], value: Any) -> Read:
    total = config.get("train_iters") or 0
    if not value or config.get("lr_warmup_fraction") is not None:
        return Read(reason=because("import_off", "lr_warmup_iters"))
    if total <= 0:
        return Read(reason=because("import_warmup_steps", "lr_warmup_iters", steps=value))
    share = round(min(1.0, value / total), 6)
    reason = because("import_warmup_share", "lr_warmup_iters", steps=value, total=total, share=share)
    return Read(values={"training.warmup_ratio": share}, reason=reason)


def _evaluation(config: Mapping[str, Any], value: Any) -> Read:
    """Read the interval of evaluation; without data for it there is none. The default is that of saving."""
    if not config.get("split_dataset_ratio") and not config.get("val_dataset"):
        return Read(values={"training.eval_steps": None}, reason=because("import_swift_no_eval", "eval_steps"))
    return Read(values={"training.eval_steps": value or config.get("save_steps", 500)})


def _held_out(config: Mapping[str, Any], value: Any) -> Read:
    """Read the share of the held-out data, where 0 means none."""
    return Read(values={"training.eval_size": float(value or 0) or None})


def _mixing(config: Mapping[str, Any], value: Any) -> Read:
    """Read shares and the way to stop. Without shares, ms-swift joins the data sets."""
    if not config.get("interleave_prob"):
        return Read()
    stops_at = config.get("stopping_strategy", "first_exhausted")
    strategy = next((name for name, stop in OF_SWIFT.items() if stop == stops_at), None)
    shares = read_shares(config, config["interleave_prob"]).values
    return Read(values={**shares, "training.mix_strategy": strategy or stops_at})


def _granularity(config: Mapping[str, Any], value: Any) -> Read:
    return Read(values={"parallel.recompute": value or "none"})


def _method(config: Mapping[str, Any], value: Any) -> Read:
    if value in (None, "uniform"):
        return Read()
    return Read(reason=because("import_recompute_method", "recompute_method", method=value))


def _offload(config: Mapping[str, Any], value: Any) -> Read:
    """Read the offload switch. ms-swift's fraction is 1 by default."""
    fraction = config.get("optimizer_offload_fraction", 1.0) if value else 0.0
    return Read(values={"parallel.optimizer_offload_fraction": fraction})


def _offload_fraction(config: Mapping[str, Any], value: Any) -> Read:
    if config.get("optimizer_cpu_offload"):
        return Read(values={"parallel.optimizer_offload_fraction": value})
    return Read(values={"parallel.optimizer_offload_fraction": 0.0}, reason=because("import_offload_off", "x"))


def _gradients(config: Mapping[str, Any], value: Any) -> Read:
    is_bf16 = read_swift_precision(config, None).values["training.precision"] == "bf16"
    return Read(values={"parallel.gradient_dtype": "fp32" if value or is_bf16 else "bf16"})


def _finetune(config: Mapping[str, Any], value: Any) -> Read:
    """Read the switch that loads only weights. Megaboard sets it itself when it resumes."""
    return Read(reason=None if value else because("import_resume", "finetune"))


def _workers(config: Mapping[str, Any], value: Any) -> Read:
    """Read the loader processes. With streaming, ms-swift uses at most MAX_STREAMING_LOADERS."""
    if not config.get("streaming") or value <= MAX_STREAMING_LOADERS:
        return Read(values={"training.workers.data_loader": value})
    reason = because("import_swift_stream", "dataloader_num_workers")
    return Read(values={"training.workers.data_loader": MAX_STREAMING_LOADERS}, reason=reason)


def _pixels(config: Mapping[str, Any], value: Any) -> Read:
    """Read the variable MAX_PIXELS, which ms-swift takes instead of max_pixels."""
    return Read(values={} if value is None else {"training.image_max_pixels": int(value)})


SWIFT = Dialect(
    readers={
        "model": _model,
        "dataset": _data,
        "cached_dataset": _data,
        "torch_dtype": read_swift_precision,
        "bf16": read_swift_precision,
        "fp16": read_swift_precision,
        "target_modules": _targets,
        "lr": _rate,
        "lr_decay_style": _schedule,
        "min_lr": _lowest_rate,
        "train_iters": _steps,
        "num_train_epochs": _epochs,
        "lr_warmup_fraction": _warmup_fraction,
        "lr_warmup_iters": _warmup_steps,
        "eval_steps": _evaluation,
        "split_dataset_ratio": _held_out,
        "interleave_prob": _mixing,
        "stopping_strategy": _mixing,
        "recompute_granularity": _granularity,
        "recompute_method": _method,
        "recompute_modules": read_modules,
        "optimizer_cpu_offload": _offload,
        "optimizer_offload_fraction": _offload_fraction,
        "accumulate_allreduce_grads_in_fp32": _gradients,
        "pipeline_model_parallel_layout": read_layout,
        "report_to": read_reports,
        "output_dir": read_output,
        "ddp_timeout": read_timeout,
        "dataloader_num_workers": _workers,
        "MAX_PIXELS": _pixels,
        "max_pixels": _pixels,
        "finetune": _finetune,
    },
    renamed={
        "load": "mcore_model",
        "save": "output_dir",
        "save_interval": "save_steps",
        "eval_interval": "eval_steps",
        "log_interval": "logging_steps",
        "max_epochs": "num_train_epochs",
        "train_type": "tuner_type",
        "num_workers": "dataloader_num_workers",
    },
    always=frozenset({"add_version", "callbacks", "rlhf_type"}),
    passed_on=frozenset({"model_type", "template"}),
    dropped=(
        ("mcore_model|mcore_adapter|adapters", "import_resume"),
        ("deepspeed", "import_off"),
    ),
)
