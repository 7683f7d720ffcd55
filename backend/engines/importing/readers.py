"""Readers of keys that do not carry one value of the job unchanged: the inverse of the renderers in backend.engines.

A reader takes (the file, its value) and returns the job's values instead; see KEY_READERS.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.engines.importing.report import because
from backend.engines.llamafactory import FINETUNING_TYPES
from backend.job.patterns import NODE_PATH
from backend.job.pipeline_layout import readable_layers, without_mtp
from backend.job.presets import models
from backend.job.problems import Problem
from backend.job.rules.common import template_without_thoughts

_RUN_ID = re.compile(r"\d{8}-\d{6}-(.+)-[0-9a-f]{4}")
_BAD_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_VARIANT = re.compile(r"[-_ ](instruct|thinking|chat|base|hf|it|\d{4})$")
_RUN_NAME_LENGTH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Result of a reader for a key."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Job path -> value."""
    reason: Problem | None = None
    """Why the value is not taken over unchanged."""


Reader = Callable[[Mapping[str, Any], Any], Read]


def read_model(config: Mapping[str, Any], value: Any) -> Read:
    """Return the folder on the nodes, and the preset of its last name."""
    path = str(value)
    values: dict[str, Any] = {}
    if preset := preset_of(path):
        values["model.preset"] = preset
    if re.fullmatch(NODE_PATH, path):
        return Read(values={**values, "model.path": path})
    return Read(values=values, reason=because("import_hub_name", "model_name_or_path", name=path))


def preset_of(name: str) -> str | None:
    """Return the model preset of a hub name or a folder such as `Qwen/Qwen3-VL-8B-Instruct`."""
    short = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    presets = {_bare(key): key for key in models()} | {_bare(model.name): model.key for model in models().values()}
    presets |= {_bare(model.hub.rpartition("/")[2]): model.key for model in models().values() if model.hub}
    while True:
        if preset := presets.get(_bare(short)):
            return preset
        shorter = _VARIANT.sub("", short)
        if shorter == short:
            return None
        short = shorter


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def read_template(config: Mapping[str, Any], value: Any) -> Read:
    """Return the chat template.

    The thinking template trains Instruct models, which never think, to answer with empty thoughts.
    """
    replacement = template_without_thoughts(str(config.get("model_name_or_path", "")), str(value))
    if replacement is None:
        return Read(values={"training.template": value})
    reason = because("import_thinking_template", "template", template=value, better=replacement)
    return Read(values={"training.template": replacement}, reason=reason)


def read_method(config: Mapping[str, Any], value: Any) -> Read:
    """Return the method: full, freeze or lora; with quantization_bit it is QLoRA."""
    methods = {engine: method for method, engine in FINETUNING_TYPES.items() if method != "qlora"}
    method = methods[str(value)]
    if method == "lora" and config.get("quantization_bit"):
        method = "qlora"
    return Read(values={"training.method": method})


def read_bits(config: Mapping[str, Any], value: Any) -> Read:
    """Read the number of bits: QLoRA trains 4-bit weights here."""
    reason = None if value in (None, 4) else because("import_bits", "quantization_bit", bits=value)
    if value == 4 and not config.get("upcast_layernorm"):
        reason = because("import_upcast", "quantization_bit")
    return Read(values={"training.method": "qlora"} if value else {}, reason=reason)


def read_precision(config: Mapping[str, Any], value: Any) -> Read:
    """Read the precision: bf16 counts before fp16; neither means fp32."""
    precision = "bf16" if config.get("bf16") or config.get("pure_bf16") else "fp16" if config.get("fp16") else "fp32"
    return Read(values={"training.precision": precision})


def read_pure_bf16(config: Mapping[str, Any], value: Any) -> Read:
    """Replace pure bf16 weights and optimizer states, which are not offered, by bf16 with fp32 masters."""
    if not value:
        return Read(reason=because("import_off", "pure_bf16"))
    return Read(values={"training.precision": "bf16"}, reason=because("import_pure_bf16", "pure_bf16"))


def read_no_checkpointing(config: Mapping[str, Any], value: Any) -> Read:
    """Read the switch of gradient checkpointing, which LLaMA-Factory turns on by default."""
    return Read(values={"parallel.recompute": "none" if value else "full"})


def read_checkpointing(config: Mapping[str, Any], value: Any) -> Read:
    """Read transformers' own switch. It can only turn checkpointing on: LLaMA-Factory turns it on anyway."""
    if value:
        return Read(values={"parallel.recompute": "full"})
    return Read(reason=because("import_checkpointing", "gradient_checkpointing"))


def read_modules(config: Mapping[str, Any], value: Any) -> Read:
    """Read modules: comma-separated, as mcore_adapter writes them, or a list."""
    return Read(values={"parallel.recompute_modules": _words(value)})


def read_recompute_method(config: Mapping[str, Any], value: Any) -> Read:
    """Read the recompute method. With a number of layers the job means `uniform`."""
    reason = None if value == "uniform" else because("import_recompute_method", "recompute_method", method=value)
    return Read(values={}, reason=reason)


def read_offload(config: Mapping[str, Any], value: Any) -> Read:
    """Read the offload switch. It has no effect without the fraction, whose default is 0."""
    fraction = config.get("optimizer_offload_fraction", 0.0) if value else 0.0
    return Read(values={"parallel.optimizer_offload_fraction": fraction})


def read_offload_fraction(config: Mapping[str, Any], value: Any) -> Read:
    """Read the offload fraction. Nothing is offloaded while the switch is off."""
    if config.get("optimizer_cpu_offload"):
        return Read(values={"parallel.optimizer_offload_fraction": value})
    return Read(reason=because("import_offload_off", "optimizer_offload_fraction"))


def read_gradient_dtype(config: Mapping[str, Any], value: Any) -> Read:
    """Read the gradient precision. With bf16, mcore_adapter always accumulates in fp32."""
    return Read(values={"parallel.gradient_dtype": "fp32" if value or config.get("bf16") else "bf16"})


def read_packing(config: Mapping[str, Any], value: Any) -> Read:
    """Read packing. By default, LLaMA-Factory packs only in pre-training."""
    return Read(values={"training.packing": config.get("stage") == "pt" if value is None else value})


def read_alpha(config: Mapping[str, Any], value: Any) -> Read:
    """Read alpha, whose default is twice the rank."""
    return Read(values={"training.lora.alpha": value or 2 * int(config.get("lora_rank", 8))})


def read_expert_tensor(config: Mapping[str, Any], value: Any) -> Read:
    """Read ETP. mcore_adapter takes TP if it is missing."""
    return Read(values={"parallel.expert_tensor": value or config.get("tensor_model_parallel_size") or 1})


def read_layout(config: Mapping[str, Any], value: Any) -> Read:
    """Read the layout. mcore_adapter takes a missing VPP from it. The rules report a layout that cannot be read."""
    value = without_mtp(value) if isinstance(value, str) else value
    values: dict[str, Any] = {"parallel.pipeline_layout": value}
    pipeline = config.get("pipeline_model_parallel_size") or 1
    layers = readable_layers(value) if isinstance(value, str) else None
    if layers and isinstance(pipeline, int) and not config.get("virtual_pipeline_model_parallel_size"):
        values["parallel.virtual_pipeline"] = max(1, len(layers) // pipeline)
    return Read(values=values)


def read_steps(config: Mapping[str, Any], value: Any) -> Read:
    """Read the number of steps. Epochs count unless it is positive."""
    return Read(values={"training.max_steps": value if value is not None and value > 0 else None})


def read_warmup_steps(config: Mapping[str, Any], value: Any) -> Read:
    """Read warm-up. The job states it as a share of all steps, so that it is valid for every plan."""
    total = config.get("max_steps") or 0
    value = value or 0
    if value < 1:  # transformers 5 reads a fraction as a share
        return Read(values={"training.warmup_ratio": value} if value else {})
    if total > 0:
        share = round(min(1.0, value / total), 6)
        reason = because("import_warmup_share", "warmup_steps", steps=value, total=total, share=share)
        return Read(values={"training.warmup_ratio": share}, reason=reason)
    return Read(reason=because("import_warmup_steps", "warmup_steps", steps=value))


def read_evaluation(config: Mapping[str, Any], value: Any) -> Read:
    """Read an interval in steps; None if the strategy is another one."""
    if value == "steps":
        return Read(values={"training.eval_steps": config.get("eval_steps") or config.get("logging_steps", 500)})
    if value == "epoch":
        return Read(reason=because("import_eval_epoch", "eval_strategy"))
    return Read(values={"training.eval_steps": None})


def read_evaluation_steps(config: Mapping[str, Any], value: Any) -> Read:
    """Read the evaluation interval. Without a strategy transformers never evaluates."""
    if config.get("eval_strategy") == "steps":
        return Read(values={"training.eval_steps": value})
    return Read(reason=because("import_eval_off", "eval_steps"))


def read_evaluation_batch(config: Mapping[str, Any], value: Any) -> Read:
    """Read the evaluation batch: evaluation uses the micro-batch of training."""
    same = value == config.get("per_device_train_batch_size")
    return Read(reason=None if same else because("import_eval_batch", "per_device_eval_batch_size"))


def read_reports(config: Mapping[str, Any], value: Any) -> Read:
    """Read where to report: `none` and an empty list are the same."""
    names = tuple(name for name in _words(value) if name != "none")
    return Read(values={"training.report_to": names})


def read_output(config: Mapping[str, Any], value: Any) -> Read:
    """Read the output folder. The job names its parent, and each run has its own folder in it."""
    parent, _, name = str(value).rstrip("/").rpartition("/")
    run_id = _RUN_ID.fullmatch(name)
    values = {"name": _job_name(run_id[1] if run_id else name)}
    if not re.fullmatch(NODE_PATH, str(value)):
        return Read(values=values, reason=because("import_relative", "output_dir", path=value))
    values["training.output_dir"] = parent or str(value)
    return Read(values=values, reason=because("import_output", "output_dir", base=parent or value))


def _job_name(text: str) -> str:
    return _BAD_IN_NAME.sub("-", text).strip("-")[:_RUN_NAME_LENGTH] or "imported"


def read_data_folder(config: Mapping[str, Any], value: Any) -> Read:
    """Read a folder on the nodes. A relative path depends on where a program was started."""
    if value is None or re.fullmatch(NODE_PATH, str(value)):
        return Read(values={"training.dataset_dir": value})
    return Read(reason=because("import_relative", "dataset_dir", path=value))


def read_timeout(config: Mapping[str, Any], value: Any) -> Read:
    """Read the time-out. LLaMA-Factory's examples set 180000000 seconds: a hung collective then never ends."""
    if value <= 86_400:
        return Read(values={"training.ddp_timeout_s": value})
    reason = because("import_timeout", "ddp_timeout", days=round(value / 86_400))
    return Read(values={"training.ddp_timeout_s": 1800}, reason=reason)


def read_names(path: str) -> Reader:
    """Read names separated by commas, or a list of them."""
    return lambda config, value: Read(values={path: ",".join(_words(value)) or None})


def read_shares(config: Mapping[str, Any], value: Any) -> Read:
    """Read the shares of the data sets: a text, or a list of numbers."""
    return Read(values={"training.interleave_probs": ",".join(_words(value)) or None})


def read_held_out(config: Mapping[str, Any], value: Any) -> Read:
    """Read the size of the held-out data. LLaMA-Factory's 0 means none, and evaluation data of their own win."""
    return Read(values={"training.eval_size": value or None})


def read_ratio(config: Mapping[str, Any], value: Any) -> Read:
    """Read the warm-up ratio, where null means 0."""
    return Read(values={"training.warmup_ratio": value or 0.0})


def read_layers(config: Mapping[str, Any], value: Any) -> Read:
    """Read the number of trained layers. In LLaMA-Factory a negative number means the first layers."""
    if value > 0:
        return Read(values={"training.trainable_layers": value})
    return Read(reason=because("import_first_layers", "freeze_trainable_layers", layers=value))


def _words(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else str(value or "").split(",")
    return tuple(name for item in items if (name := str(item).strip()))


KEY_READERS: Mapping[str, Reader] = {
    "model_name_or_path": read_model,
    "template": read_template,
    "finetuning_type": read_method,
    "quantization_bit": read_bits,
    "bf16": read_precision,
    "fp16": read_precision,
    "pure_bf16": read_pure_bf16,
    "disable_gradient_checkpointing": read_no_checkpointing,
    "gradient_checkpointing": read_checkpointing,
    "recompute_modules": read_modules,
    "recompute_method": read_recompute_method,
    "optimizer_cpu_offload": read_offload,
    "optimizer_offload_fraction": read_offload_fraction,
    "accumulate_allreduce_grads_in_fp32": read_gradient_dtype,
    "packing": read_packing,
    "lora_alpha": read_alpha,
    "expert_tensor_parallel_size": read_expert_tensor,
    "pipeline_model_parallel_layout": read_layout,
    "max_steps": read_steps,
    "warmup_steps": read_warmup_steps,
    "warmup_ratio": read_ratio,
    "freeze_trainable_layers": read_layers,
    "eval_strategy": read_evaluation,
    "eval_steps": read_evaluation_steps,
    "per_device_eval_batch_size": read_evaluation_batch,
    "report_to": read_reports,
    "output_dir": read_output,
    "dataset_dir": read_data_folder,
    "ddp_timeout": read_timeout,
    "dataset": read_names("training.dataset"),
    "eval_dataset": read_names("training.eval_dataset"),
    "interleave_probs": read_shares,
    "val_size": read_held_out,
    "lora_target": read_names("training.lora.targets"),
}
