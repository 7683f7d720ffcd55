"""Rules of Liger's kernels."""

from backend.job.job import Job
from backend.job.liger import has_effect, has_fused_loss, own_loss
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)


@rule(scopes.megatron)
def liger_is_hugging_faces(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The Megatron path never reads enable_liger_kernel."""
    if not job.training.liger:
        return None
    return problem("liger_ignored", "training.liger", "warning", engine=job.engine, edit={"training.liger": False})


@rule(scopes.hugging_face)
def liger_replaces_something(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory only logs `Current model does not support liger kernel`, and transformers' trainer logs nothing
    that a user sees (backend/job/liger.py)."""
    if not job.training.liger or has_effect(job, shape.model_type):
        return None
    return problem("liger_has_no_effect", "training.liger", "warning", engine=job.engine, model_type=shape.model_type,
                   edit={"training.liger": False})  # fmt: skip


@rule(scopes.swift_trainer)
def liger_suits_the_trainer(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 ends in the first step with Liger 0.8.2 (small models on CPU, with Liger's forward alone).

    A reward model has a class without an output layer. Liger replaces its forward pass by that of a language model
    (monkey_patch.py, `model.forward = MethodType(qwen3_lce_forward, model)`): `'Qwen3ForSequenceClassification' object
    has no attribute 'lm_head'`. Of a type without such a class, Liger's forward leaves out the reward (model/patcher.py
    _patch_sequence_classification). KTO deletes the constructor of trl's trainer, which makes Liger's loss
    (rlhf_trainers/kto_trainer.py): `'KTOTrainer' object has no attribute 'kto_loss_fn'`.
    """
    stage, fuses = job.training.stage, has_fused_loss(job, shape.model_type)
    if not job.training.liger or not (stage == "kto" or (stage == "rm" and fuses)):
        return None
    return problem("liger_ends_training", "training.liger", case=stage, edit={"training.liger": False})


@rule(scopes.hugging_face)
def ligers_loss_is_fused(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Liger has kernels for the modules of some types, and no loss without logits. A trainer that computes the loss
    itself reads all logits too."""
    is_on = job.training.liger and job.training.stage in ("pt", "sft")
    if not is_on or not has_effect(job, shape.model_type):
        return None
    if not has_fused_loss(job, shape.model_type):
        return problem("liger_keeps_logits", "training.liger", "note", engine=job.engine, model_type=shape.model_type)
    key = own_loss(job)
    return problem("liger_loss_replaced", "extra", "note", key=key, engine=job.engine) if key else None
