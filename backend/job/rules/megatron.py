"""Rules of the engines that train with Megatron-Core; most are checks that it makes itself, but late."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
megatron = registrar(RULES, lambda traits: traits.is_megatron)
mcore_adapter = registrar(RULES, lambda traits: traits.is_megatron and traits.environment == "llamafactory")


@megatron()
def heads_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_attention_heads must be a multiple of TP."""
    if shape.heads % job.parallel.tensor == 0:
        return None
    return problem("heads_not_divisible", "parallel.tensor", heads=shape.heads, tensor=job.parallel.tensor)


@megatron()
def groups_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_query_groups must be a multiple or divisor of TP."""
    groups, tensor = shape.kv_heads, job.parallel.tensor
    if groups % tensor == 0 or tensor % groups == 0:
        return None
    return problem("groups_not_divisible", "parallel.tensor", groups=groups, tensor=tensor)


@megatron()
def widths_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Column-parallel layers are cut into TP equal parts: the FFN, and the vocabulary as mcore_adapter builds it."""
    tensor = job.parallel.tensor
    for name, width in (("intermediate_size", shape.ffn), ("vocab_size", shape.vocab)):
        if width % tensor:
            return problem("width_not_divisible", "parallel.tensor", name=name, width=width, tensor=tensor)
    return None


@megatron()
def tensor_stays_in_node(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """TP communicates in every layer; across nodes it waits for the network."""
    per_node, tensor = job.cluster.gpus_per_node, job.parallel.tensor
    if per_node % tensor == 0:
        return None
    return problem("tensor_across_nodes", "parallel.tensor", "warning", tensor=tensor, per_node=per_node)


@megatron()
def layers_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: layers (plus the embedding and loss accounts) must be a multiple of PP x VPP."""
    parallel = job.parallel
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    chunks = parallel.pipeline * parallel.virtual_pipeline
    if counted % chunks == 0:
        return None
    return problem("layers_not_divisible", "parallel.pipeline", layers=counted, chunks=chunks)


@megatron()
def interleaving_needs_stages(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the interleaved schedule needs PP > 1."""
    if job.parallel.virtual_pipeline == 1 or job.parallel.pipeline > 1:
        return None
    return problem("virtual_without_pipeline", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@megatron()
def interleaving_needs_micro_batches(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core schedules.py: with VPP at least PP micro-batches, and no remainder smaller than PP."""
    parallel, micro_batches = job.parallel, job.accumulation
    if parallel.virtual_pipeline == 1 or parallel.pipeline == 1:
        return None
    if micro_batches >= parallel.pipeline and micro_batches % parallel.pipeline == 0:
        return None
    return problem("too_few_micro_batches", "training.gradient_accumulation_steps", micro_batches=micro_batches,
                    pipeline=parallel.pipeline)  # fmt: skip


@megatron()
def experts_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_moe_experts must be set to use expert parallel; ETP splits experts alone."""
    split = [name for name in ("expert", "expert_tensor") if getattr(job.parallel, name) > 1]
    if not split or shape.experts:
        return None
    edit: dict[str, object] = {f"parallel.{name}": 1 for name in split}
    return problem("expert_parallel_without_experts", f"parallel.{split[0]}", edit=edit)


@megatron()
def experts_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Every expert-parallel rank holds the same number of whole experts."""
    if not shape.experts or shape.experts % job.parallel.expert == 0:
        return None
    return problem("experts_not_divisible", "parallel.expert", experts=shape.experts, expert=job.parallel.expert)


@megatron()
def expert_ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: world_size must be a multiple of ETP x EP x PP."""
    parallel = job.parallel
    product = parallel.expert_tensor * parallel.expert * parallel.pipeline
    if not shape.experts or job.world_size % product == 0:
        return None
    return problem("expert_ranks_not_divisible", "parallel.expert", ranks=job.world_size, product=product)


@megatron()
def expert_width_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ETP cuts every expert's FFN into equal parts."""
    if not shape.experts or shape.expert_ffn % job.parallel.expert_tensor == 0:
        return None
    return problem("width_not_divisible", "parallel.expert_tensor", name="moe_intermediate_size",
                    width=shape.expert_ffn, tensor=job.parallel.expert_tensor)  # fmt: skip


@megatron()
def sequence_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """CP cuts a sequence into 2 x CP chunks; SFT pads to 64 tokens, PT to 8 (mcore_adapter's collators)."""
    padding = 8 if job.training.stage == "pt" else 64
    chunks = 2 * job.parallel.context
    if job.parallel.context == 1 or padding % chunks == 0:
        return None
    return problem("sequence_not_divisible", "parallel.context", chunks=chunks, padding=padding)


@megatron()
def packing_without_context(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts that every packed sub-sequence is aligned to 2 x CP; LLaMA-Factory does not align them."""
    if not job.training.packing or job.parallel.context == 1:
        return None
    return problem("packing_with_context", "training.packing", edit={"training.packing": False})


@megatron()
def deep_stack_fits_first_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Qwen3-VL feeds deep-stack features to the first layers, which must all be on the first stage (chunk).

    mcore_adapter asserts one layer more (models/qwen3_vl/transformer_block.py), mcore-bridge does not.
    """
    deep = shape.vision.deep_stack if shape.vision else 0
    parallel = job.parallel
    chunks = parallel.pipeline * parallel.virtual_pipeline
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    first = counted // chunks - parallel.account_for_embedding
    needed = deep + (job.traits.environment == "llamafactory")
    if deep == 0 or first >= needed:
        return None
    return problem("deep_stack_beyond_first_stage", "parallel.pipeline", layers=first, deep=deep, needed=needed)


@megatron()
def parameter_gather_overlap_is_complete(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts both: overlap_param_gather needs the distributed optimizer and overlap_grad_reduce."""
    parallel = job.parallel
    if not parallel.overlap_param_gather or (parallel.distributed_optimizer and parallel.overlap_grad_reduce):
        return None
    return problem("param_gather_needs_more", "parallel.overlap_param_gather",
                    edit={"parallel.distributed_optimizer": True, "parallel.overlap_grad_reduce": True})  # fmt: skip


@megatron()
def overlap_suits_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """On ranks without images the projector gets no gradient, and an overlapped reduction waits for it for ever."""
    parallel = job.parallel
    if not shape.vision or not (parallel.overlap_grad_reduce or parallel.overlap_param_gather):
        return None
    edit = {"parallel.overlap_grad_reduce": False, "parallel.overlap_param_gather": False}
    return problem("overlap_with_vision", "parallel.overlap_grad_reduce", "warning", edit=dict(edit))


@megatron()
def recompute_layers_need_full(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: recompute_num_layers must be None with selective recompute."""
    if job.parallel.recompute_num_layers is None or job.recompute == "full":
        return None
    return problem("recompute_layers_without_full", "parallel.recompute_num_layers",
                    edit={"parallel.recompute_num_layers": None})  # fmt: skip


@megatron()
def recompute_modules_need_selective(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """recompute_modules is read with selective recompute only."""
    if not job.parallel.recompute_modules or job.recompute == "selective":
        return None
    return problem("recompute_modules_without_selective", "parallel.recompute_modules", "warning",
                    edit={"parallel.recompute": "selective"})  # fmt: skip


@megatron()
def recomputed_modules_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer_config.py: moe_act needs the grouped GEMM, mla_up_proj latent attention."""
    modules = job.parallel.recompute_modules if job.recompute == "selective" else ()
    if "moe_act" in modules and not job.parallel.moe_grouped_gemm:
        return problem("recompute_needs", "parallel.recompute_modules", module="moe_act", needs="moe_grouped_gemm",
                        edit={"parallel.moe_grouped_gemm": True})  # fmt: skip
    if "mla_up_proj" in modules and shape.mla is None:
        rest = tuple(module for module in modules if module != "mla_up_proj")
        return problem("recompute_needs", "parallel.recompute_modules", module="mla_up_proj",
                        needs="multi_latent_attention", edit={"parallel.recompute_modules": rest})  # fmt: skip
    return None


@megatron()
def dispatcher_suits_experts(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """allgather moves every token to every expert rank."""
    if not shape.experts or job.parallel.expert == 1 or job.parallel.moe_token_dispatcher == "alltoall":  # noqa: S105
        return None
    return problem("allgather_with_experts", "parallel.moe_token_dispatcher", "warning",
                    edit={"parallel.moe_token_dispatcher": "alltoall"})  # fmt: skip


@megatron()
def scheduler_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `lr_scheduler_type X is not supported`."""
    if job.training.lr_scheduler != "polynomial":
        return None
    return problem("scheduler_not_supported", "training.lr_scheduler", scheduler=job.training.lr_scheduler,
                    edit={"training.lr_scheduler": "cosine"})  # fmt: skip


@mcore_adapter()
def seed_is_positive(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `Seed should be a positive integer.`"""
    if job.training.seed > 0:
        return None
    return problem("seed_not_positive", "training.seed", edit={"training.seed": 42})


@megatron()
def preference_loss_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `pref_loss: X is not supported.`, raised only at the first loss."""
    if job.training.stage != "dpo" or job.training.dpo.loss in job.traits.preference_losses:
        return None
    return problem("preference_loss_not_supported", "training.dpo.loss", loss=job.training.dpo.loss,
                    edit={"training.dpo.loss": "sigmoid"})  # fmt: skip


@mcore_adapter()
def data_is_not_shuffled(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's train loader is a SequentialSampler."""
    if not job.training.dataset or job.training.prepare.shuffle:
        return None
    return problem("no_shuffling", "training.dataset", "note", edit={"training.prepare.shuffle": True})


@mcore_adapter()
def experts_pad_samples(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory train/mca/workflow.py (pad_to_max): with EP > 1 its collators pad every sample to cutoff_len."""
    training = job.training
    if job.parallel.expert == 1 or training.packing or training.stage == "pt" or not training.dataset:
        return None
    return problem("padded_to_cutoff", "training.cutoff_len", "note", cutoff=training.cutoff_len)


@mcore_adapter()
def experts_and_tensor_force_sequence(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter turns sequence parallel on where EP > 1 and TP > 1."""
    parallel = job.parallel
    if parallel.sequence or parallel.expert == 1 or parallel.tensor == 1:
        return None
    return problem("sequence_forced", "parallel.sequence", "warning", edit={"parallel.sequence": True})


@megatron()
def interleaving_needs_gpus(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The interleaved schedule relies on CUDA streams; on CPU ranks its losses were NaN."""
    if gpu.device != "cpu" or job.parallel.virtual_pipeline == 1:
        return None
    return problem("virtual_on_cpu", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@mcore_adapter()
def gradients_are_fp32(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter sets accumulate_allreduce_grads_in_fp32 whenever bf16 is on."""
    if job.parallel.gradient_dtype == "fp32" or job.training.precision != "bf16":
        return None
    return problem(
        "gradients_stay_fp32", "parallel.gradient_dtype", "warning", edit={"parallel.gradient_dtype": "fp32"}
    )


@megatron()
def liger_is_hugging_faces(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The Megatron path never reads enable_liger_kernel."""
    if not job.training.liger:
        return None
    return problem("liger_ignored", "training.liger", "warning", engine=job.engine, edit={"training.liger": False})


@megatron()
def wandb_is_dropped(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's TrainingArguments removes wandb from report_to."""
    if "wandb" not in job.training.report_to:
        return None
    rest = tuple(name for name in job.training.report_to if name != "wandb")
    return problem("wandb_dropped", "training.report_to", "warning", engine=job.engine,
                   edit={"training.report_to": rest})  # fmt: skip
