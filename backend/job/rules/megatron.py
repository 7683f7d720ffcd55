"""Rules of the Megatron-Core engines, except sizes. Megatron-Core checks most of them itself, but late."""

from collections.abc import Iterable

from backend.job.batch import can_pack
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)


@rule(scopes.megatron)
def parameter_gather_overlap_is_complete(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts both: overlap_param_gather needs the distributed optimizer and overlap_grad_reduce."""
    parallel = job.parallel
    if not parallel.overlap_param_gather or (parallel.distributed_optimizer and parallel.overlap_grad_reduce):
        return None
    return problem("param_gather_needs_more", "parallel.overlap_param_gather",
                    edit={"parallel.distributed_optimizer": True, "parallel.overlap_grad_reduce": True})  # fmt: skip


@rule(scopes.megatron)
def overlap_suits_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """On ranks without images the projector has no gradient, so an overlapped reduction waits for it forever."""
    parallel = job.parallel
    if not shape.vision or not (parallel.overlap_grad_reduce or parallel.overlap_param_gather):
        return None
    edit = {"parallel.overlap_grad_reduce": False, "parallel.overlap_param_gather": False}
    return problem("overlap_with_vision", "parallel.overlap_grad_reduce", "warning", edit=dict(edit))


@rule(scopes.megatron)
def recompute_layers_need_full(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: recompute_num_layers must be None with selective recompute."""
    if job.parallel.recompute_num_layers is None or job.recompute == "full":
        return None
    return problem("recompute_layers_without_full", "parallel.recompute_num_layers",
                    edit={"parallel.recompute_num_layers": None})  # fmt: skip


@rule(scopes.megatron)
def recompute_modules_need_selective(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """recompute_modules is read only with selective recompute."""
    if not job.parallel.recompute_modules or job.recompute == "selective":
        return None
    return problem("recompute_modules_without_selective", "parallel.recompute_modules", "warning",
                    edit={"parallel.recompute": "selective"})  # fmt: skip


@rule(scopes.megatron)
def recomputed_modules_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer_config.py: moe_act needs the grouped GEMM, mla_up_proj latent attention.

    It ignores the modules of experts in a dense model, or asks for the grouped GEMM that such a model cannot have.
    """
    modules = job.parallel.recompute_modules if job.recompute == "selective" else ()
    if "moe_act" in modules and shape.experts and not job.parallel.moe_grouped_gemm:
        return problem("recompute_needs", "parallel.recompute_modules", module="moe_act", needs="moe_grouped_gemm",
                        edit={"parallel.moe_grouped_gemm": True})  # fmt: skip
    lacking = _lacking(modules, shape)
    if lacking is None:
        return None
    module, needs = lacking
    other_modules = tuple(other for other in modules if _lacking((other,), shape) is None)
    return problem("recompute_needs", "parallel.recompute_modules", module=module, needs=needs,
                   edit={"parallel.recompute_modules": other_modules})  # fmt: skip


_MODULES_OF_EXPERTS = frozenset({"moe", "moe_act", "shared_experts"})


def _lacking(modules: Iterable[str], shape: ModelShape) -> tuple[str, str] | None:
    """Return the first module that the model does not have, and what it needs, in Megatron-Core's words."""
    for module in modules:
        if module == "mla_up_proj" and shape.mla is None:
            return module, "multi_latent_attention"
        if module in _MODULES_OF_EXPERTS and not shape.experts:
            return module, "num_moe_experts"
    return None


@rule(scopes.megatron)
def dispatcher_suits_experts(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """allgather moves every token to every expert rank."""
    if not shape.experts or job.parallel.expert == 1 or job.parallel.moe_token_dispatcher == "alltoall":  # noqa: S105
        return None
    return problem("allgather_with_experts", "parallel.moe_token_dispatcher", "warning",
                    edit={"parallel.moe_token_dispatcher": "alltoall"})  # fmt: skip


@rule(scopes.megatron)
def scheduler_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `lr_scheduler_type X is not supported`; ms-swift's lr_decay_style has no such choice."""
    if job.training.lr_scheduler != "polynomial":
        return None
    return problem("scheduler_not_supported", "training.lr_scheduler", scheduler=job.training.lr_scheduler,
                   engine=job.engine, edit={"training.lr_scheduler": "cosine"})  # fmt: skip


@rule(scopes.mcore_adapter)
def seed_is_positive(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `Seed should be a positive integer.`"""
    if job.training.seed > 0:
        return None
    return problem("seed_not_positive", "training.seed", edit={"training.seed": 42})


@rule(scopes.megatron)
def preference_loss_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `pref_loss: X is not supported.`, raised only at the first loss. ms-swift uses trl's losses."""
    losses = job.traits.preference_losses
    if job.training.stage != "dpo" or job.training.dpo.loss in losses:
        return None
    return problem("preference_loss_not_supported", "training.dpo.loss", loss=job.training.dpo.loss, engine=job.engine,
                   losses=", ".join(losses), edit={"training.dpo.loss": "sigmoid"})  # fmt: skip


@rule(scopes.mcore_adapter)
def data_is_not_shuffled(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's train loader is a SequentialSampler."""
    if not job.training.dataset or job.training.prepare.shuffle:
        return None
    return problem("no_shuffling", "training.dataset", "note", edit={"training.prepare.shuffle": True})


@rule(scopes.mcore_adapter)
def experts_pad_samples(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory train/mca/workflow.py (pad_to_max): with EP > 1 its collators pad every sample to cutoff_len."""
    training = job.training
    if job.parallel.expert == 1 or training.packing or training.stage == "pt" or not training.dataset:
        return None
    if training.sample_tokens is not None:
        # The cost is known then and can be stated.
        return None
    return problem("padded_to_cutoff", "training.cutoff_len", "note", cutoff=training.cutoff_len,
                    edit={"training.packing": True} if can_pack(job) else None)  # fmt: skip


@rule(scopes.mcore_adapter)
def experts_and_tensor_force_sequence(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter turns sequence parallel on with EP > 1 and TP > 1."""
    parallel = job.parallel
    if parallel.sequence or parallel.expert == 1 or parallel.tensor == 1:
        return None
    return problem("sequence_forced", "parallel.sequence", "warning", edit={"parallel.sequence": True})


@rule(scopes.megatron)
def interleaving_needs_gpus(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The interleaved schedule relies on CUDA streams; on CPU ranks its losses were NaN."""
    if gpu.device != "cpu" or job.parallel.virtual_pipeline == 1:
        return None
    return problem("virtual_on_cpu", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@rule(scopes.megatron)
def gradients_are_fp32(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Both engines set accumulate_allreduce_grads_in_fp32 whenever bf16 is on.

    Sources: mcore_adapter training_args.py; ms-swift 4.6.0 megatron_args.py _map_dtype.
    """
    if job.parallel.gradient_dtype == "fp32" or job.training.precision != "bf16":
        return None
    return problem("gradients_stay_fp32", "parallel.gradient_dtype", "warning", engine=job.engine,
                   edit={"parallel.gradient_dtype": "fp32"})  # fmt: skip


@rule(scopes.swift_megatron)
def swift_has_gpus(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge builds the model of Transformer Engine's modules, which need GPUs."""
    if gpu.device != "cpu":
        return None
    return problem(
        "swift_on_cpu", "engine", engine=job.engine, edit={"engine": "swift-ddp", "training.precision": "fp32"}
    )


@rule(scopes.mcore_adapter)
def weights_have_16_bits(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """In fp32, megatron-core's loss overwrites the logits that mcore_adapter's _McaLoraLogitsHelper returned as a view.

    torch refuses this in the first step (mcore_adapter models/model_utils.py).
    """
    if job.training.precision != "fp32":
        return None
    return problem("megatron_needs_16_bits", "training.precision", engine=job.engine,
                   edit={"training.precision": "bf16" if gpu.supports_bf16 else "fp16"})  # fmt: skip


@rule(scopes.megatron)
def experts_need_sequence(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer/moe/moe_layer.py raises in training if TP > 1 and sequence parallel is off."""
    parallel = job.parallel
    if not shape.experts or parallel.tensor == 1:
        return None
    if gpu.device == "cpu":
        return problem("moe_tensor_on_cpu", "parallel.tensor", edit={"parallel.tensor": 1})
    is_forced = job.traits.environment == "llamafactory" and parallel.expert > 1
    if parallel.sequence or is_forced:
        return None
    return problem("moe_needs_sequence", "parallel.sequence", edit={"parallel.sequence": True})


@rule(scopes.mcore_adapter)
def wandb_is_dropped(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's TrainingArguments removes wandb from report_to."""
    if "wandb" not in job.training.report_to:
        return None
    other_reports = tuple(name for name in job.training.report_to if name != "wandb")
    return problem("wandb_dropped", "training.report_to", "warning", engine=job.engine,
                   edit={"training.report_to": other_reports})  # fmt: skip
