"""Trainings that end well. The diagnosis must find nothing in their logs."""

from collections.abc import Mapping
from typing import Any

from tests.diagnosis.provoke.gang import Cause
from tests.diagnosis.provoke.parallel import MEGATRON, MEGATRON_VALUES, RESUME, ZERO, keep_all, trained_first
from tools.tiny_data import PREFERENCE, TEXT

_LORA = {"training.method": "lora"}
_DPO = {"training.stage": "dpo", "training.dataset": PREFERENCE}
_PT = {"training.stage": "pt", "training.dataset": TEXT, "training.template": None}
_FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
_VISION: Mapping[str, Any] = {"model": "vision", "paths": ("packages/torchvision",)}
_QLORA: Mapping[str, Any] = {"values": {"training.method": "qlora"}, "paths": ("packages/bitsandbytes",)}
_FSDP1 = {"parallel.fsdp.version": 1}


def _run(engine: str, **fields: Any) -> Cause:
    return Cause(category=None, how="", ends_well=True, engine=engine, **{"nodes": 1, **fields})


def _ddp(**fields: Any) -> Cause:
    return _run("llamafactory-ddp", **fields)


def _zero(engine: str, **fields: Any) -> Cause:
    return _run(f"llamafactory-{engine}", environment=ZERO, **{"nodes": 2, **fields})


def _fsdp(**fields: Any) -> Cause:
    return _run("llamafactory-fsdp", **{"nodes": 2, "paths": (PROOF_PATH,), **fields})


def _megatron(values: Mapping[str, Any], **fields: Any) -> Cause:
    return _run(**{**MEGATRON, "nodes": 2, "values": {**MEGATRON_VALUES, **values}, **fields})


PROOF_PATH = MEGATRON["paths"][0]

HEALTHY: Mapping[str, Cause] = {
    "llamafactory-ddp-sft": _ddp(),
    "llamafactory-ddp-two-nodes": _ddp(nodes=2),
    "llamafactory-ddp-two-ranks": _ddp(ranks=2),
    "llamafactory-ddp-lora": _ddp(values=_LORA),
    "llamafactory-ddp-qlora": _ddp(**_QLORA),
    "llamafactory-ddp-partial": _ddp(values={"training.method": "partial", "training.trainable_layers": 1}),
    "llamafactory-ddp-dpo": _ddp(values=_DPO),
    "llamafactory-ddp-dpo-lora": _ddp(values=_DPO | _LORA),
    "llamafactory-ddp-pt": _ddp(values=_PT),
    "llamafactory-ddp-bf16": _ddp(keys={"bf16": True}),
    "llamafactory-ddp-packing": _ddp(values={"training.packing": True}),
    "llamafactory-ddp-evaluation": _ddp(keys={"val_size": 0.1, "eval_strategy": "steps", "eval_steps": 3}),
    "llamafactory-ddp-accumulation": _ddp(nodes=2, values={"training.gradient_accumulation_steps": 4}),
    "llamafactory-ddp-recompute": _ddp(keys={"disable_gradient_checkpointing": False, "use_reentrant_gc": True}),
    "llamafactory-ddp-workers": _ddp(values={"training.workers.data_loader": 2, "training.workers.preprocessing": 2}),
    "llamafactory-ddp-short-texts": _ddp(values={"training.cutoff_len": 16}),
    "llamafactory-ddp-new-tokens": _ddp(keys={"add_tokens": "plus,minus"}),
    "llamafactory-ddp-tensorboard": _ddp(keys={"report_to": "tensorboard"}),
    "llamafactory-ddp-wandb-offline": _ddp(
        keys={"report_to": "wandb"},
        paths=("packages/wandb",),
        environment={"WANDB_MODE": "offline", "WANDB_DIR": "$RUN"},
    ),
    "llamafactory-ddp-resumed": _ddp(keys=RESUME, prepare=trained_first(keep_all)),
    "llamafactory-ddp-lora-resumed": _ddp(values=_LORA, keys=RESUME, prepare=trained_first(keep_all)),
    "llamafactory-ddp-dora": _ddp(values={"training.lora.rank": 4, **_LORA}, keys={"use_dora": True}),
    "llamafactory-ddp-neftune": _ddp(keys={"neftune_noise_alpha": 5, "max_grad_norm": 0.1}),
    "llamafactory-ddp-vision": _ddp(**_VISION),
    "llamafactory-ddp-vision-frozen": _ddp(values=_FROZEN, **_VISION),
    "llamafactory-ddp-experts": _ddp(model="experts"),
    "llamafactory-fsdp2-sft": _fsdp(),
    "llamafactory-fsdp1-sft": _fsdp(values=_FSDP1),
    "llamafactory-fsdp2-lora": _fsdp(values=_LORA),
    "llamafactory-zero2-sft": _zero("zero2"),
    "llamafactory-zero3-sft": _zero("zero3"),
    "llamafactory-zero3-lora": _zero("zero3", values=_LORA),
    "llamafactory-zero3-resumed": _zero("zero3", keys=RESUME, prepare=trained_first(keep_all)),
    "llamafactory-megatron-tp2": _megatron({"parallel.tensor": 2}),
    "llamafactory-megatron-pp2": _megatron({"parallel.pipeline": 2}),
    "llamafactory-megatron-dp2": _megatron({}),
    "llamafactory-megatron-experts": _megatron({"parallel.expert": 2}, model="experts"),
    "llamafactory-megatron-resumed": _megatron({"parallel.tensor": 2}, keys=RESUME, prepare=trained_first(keep_all)),
    "llamafactory-megatron-dpo": _megatron({**_DPO, "parallel.tensor": 2}),
}
