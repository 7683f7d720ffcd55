"""Widgets that the page hides because they have no meaning for the draft."""

from collections.abc import Iterator

from app.text.reference import ENVIRONMENTS, GPU_FIGURES
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.problems import widget_of
from app.wizard.scheduler import FIELD as SCHEDULER
from app.wizard.scheduler import KIND as SCHEDULER_KIND
from backend.job.job import Job
from backend.job.liger import has_effect
from backend.job.mixing import CONCAT, data_sets

_VISION = (
    "training.freeze.vision_tower", "training.freeze.projector", "training.freeze.language_model",
    "training.image_max_pixels", "training.video_max_pixels", "training.images_per_sample",
)  # fmt: skip
_LORA = ("training.lora.rank", "training.lora.alpha", "training.lora.targets")
_GRPO = tuple(
    f"training.grpo.{name}"
    for name in ("rewards", "plugin", "group_size", "completion_len", "temperature", "beta", "epsilon", "rollout")
)
_VLLM = ("training.grpo.vllm_memory", "training.grpo.vllm_sleep")
_EXPERTS = ("parallel.expert", "parallel.expert_tensor", "parallel.moe_grouped_gemm", "parallel.moe_token_dispatcher")
_MEGATRON = (
    "parallel.tensor", "parallel.pipeline", "parallel.virtual_pipeline", "parallel.context", "parallel.sequence",
    "parallel.account_for_embedding", "parallel.account_for_loss", "parallel.pipeline_layout",
    "parallel.recompute_modules",
    "parallel.recompute_num_layers", "parallel.distributed_optimizer", "parallel.gradient_dtype",
    "parallel.overlap_grad_reduce", "parallel.overlap_param_gather", "parallel.bias_activation_fusion",
    "parallel.rope_fusion", "parallel.cross_entropy_fusion", "parallel.optimizer_offload_fraction",
)  # fmt: skip


_HOSTS = (
    "cluster.hosts.lines", "cluster.spares", "cluster.hosts.user", "cluster.hosts.identity_file",
    "cluster.hosts.proxy_jump",
    *(f"cluster.environments.{name}.container.{key}" for name in ENVIRONMENTS for key in ("image", "runtime")),
)  # fmt: skip


def hidden(form: Form, state: DraftState) -> list[str] | None:
    """Return the paths of the widgets to hide. A widget with a problem stays. None if the draft cannot be read."""
    job = state.job
    if job is None:
        return None
    with_problems = {widget_of(form, problem) for problem in (*state.problems, *state.missing)}
    return [path for path in _irrelevant(form, job, state) if path in form.components and path not in with_problems]


def _irrelevant(form: Form, job: Job, state: DraftState) -> Iterator[str]:
    yield from _of_cluster(form, job, state)
    if job.model.preset:
        yield "model.hf_config"
    if state.shape and not state.shape.vision:
        yield from _VISION
    yield from _of_training(job)
    if job.traits.is_megatron or (state.shape and not has_effect(job, state.shape.model_type)):
        yield "training.liger"
    if not job.traits.is_megatron:
        yield from _MEGATRON
    if not job.traits.is_megatron or (state.shape and not state.shape.experts):
        yield from _EXPERTS
    yield from _of_parallel(job)


def _of_cluster(form: Form, job: Job, state: DraftState) -> Iterator[str]:
    if state.scheduler:
        yield from _HOSTS
    else:
        yield from (path for path in form.components if path.startswith(f"{SCHEDULER}.") and path != SCHEDULER_KIND)
    if isinstance(job.cluster.gpu, str):
        yield from (f"cluster.gpu.{name}" for name in GPU_FIGURES)
    for name in ENVIRONMENTS:
        if name != job.traits.environment:
            keys = ("python", "setup", "container.image", "container.runtime")
            yield from (f"cluster.environments.{name}.{key}" for key in keys)


def _of_training(job: Job) -> Iterator[str]:
    training = job.training
    if training.global_batch_size is not None:
        # Each plan computes the accumulation, so the draft's value has no meaning.
        yield "training.gradient_accumulation_steps"
    if training.method not in ("lora", "qlora"):
        yield from _LORA
    if training.method != "partial":
        yield "training.trainable_layers"
    if training.stage not in ("dpo", "kto"):
        yield "training.dpo.beta"
    if training.stage != "dpo":
        yield "training.dpo.loss"
    if training.stage != "grpo":
        yield from _GRPO
    if training.stage != "grpo" or training.grpo.rollout != "vllm":
        yield from _VLLM
    if data_sets(job) < 2 and training.mix_strategy == CONCAT:
        yield "training.mix_strategy"
    if training.mix_strategy == CONCAT and training.interleave_probs is None:
        yield "training.interleave_probs"
    if job.traits.environment == "swift":
        yield "training.eval_dataset"


def _of_parallel(job: Job) -> Iterator[str]:
    traits = job.traits
    if job.recompute != "selective":
        yield "parallel.recompute_modules"
    if job.recompute != "full":
        yield "parallel.recompute_num_layers"
    if not traits.is_fsdp or len(traits.fsdp_versions) == 1:
        yield "parallel.fsdp.version"
    if not traits.is_fsdp:
        yield from ("parallel.fsdp.reshard_after_forward", "parallel.fsdp.offload")
    if "offload" not in job.engine:
        yield "parallel.offload_device"
    if "offload" not in job.engine or job.parallel.offload_device != "nvme":
        yield "parallel.offload_folder"
    if traits.offloads != "everything":
        yield "parallel.offload_parameters"
