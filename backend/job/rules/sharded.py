"""Rules of the Hugging Face engines that shard the model: DeepSpeed ZeRO and FSDP."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.traits import sibling

WRITES_INPUT_TYPE = ("bailing_moe", "deepseek")
"""Types with code of their own whose experts write into a tensor of the type of their inputs."""
RULES: list[BoundRule] = []
rule = registrar(RULES)

# LLaMA-Factory 0.9.5 model/model_utils/quantization.py dequantizes such weights when it loads them.
_EXPANDED = ("mxfp4", "fp8")


@rule(scopes.zero_offload)
def a_disk_needs_a_folder(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """DeepSpeed zero/partition_parameters.py: `"nvme_path" in DeepSpeed Config cannot be None`."""
    if job.parallel.offload_device != "nvme" or job.parallel.offload_folder:
        return None
    return problem("offload_folder_missing", "parallel.offload_folder", edit={"parallel.offload_device": "cpu"})


@rule(scopes.zero_offload)
def a_disk_needs_stage_3(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """DeepSpeed zero/stage_1_and_2.py treats every device other than `none` as host memory."""
    if job.parallel.offload_device != "nvme" or job.traits.zero_stage == 3:
        return None
    return problem("nvme_needs_stage_3", "parallel.offload_device", "warning", edit={"parallel.offload_device": "cpu"})


@rule(scopes.zero_offload)
def offloaded_gradients_are_kept(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """DeepSpeed before 0.19.0 loses gradients (https://github.com/deepspeedai/DeepSpeed/pull/7967;
    tests/engines/test_deepspeed_offload.py). The preflight knows the version of the nodes (broken_versions.py)."""
    if job.traits.zero_stage != 2 or job.accumulation <= 2:
        return None
    return problem("offload_needs_new_deepspeed", "training.gradient_accumulation_steps", "note",
                   accumulation=job.accumulation)  # fmt: skip


@rule(scopes.hugging_face)
def offload_fraction_is_megatrons(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Engines with offload move the whole optimizer; the others move none of it."""
    if not job.parallel.optimizer_offload_fraction:
        return None
    return problem("offload_fraction_ignored", "parallel.optimizer_offload_fraction", "warning", engine=job.engine,
                    edit={"parallel.optimizer_offload_fraction": 0.0})  # fmt: skip


@rule(scopes.hugging_face)
def an_optimizer_on_the_host_needs_threads(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """torchrun's OMP_NUM_THREADS is 1: the whole optimizer step of a rank then runs on one core."""
    on_host = job.traits.offloads != "none" or (job.traits.is_fsdp and job.parallel.fsdp.offload)
    if not on_host or gpu.device == "cpu" or "OMP_NUM_THREADS" in job.environment:
        return None
    return problem("offload_on_one_thread", "engine", "warning",
                    edit={"environment": {**job.environment, "OMP_NUM_THREADS": "8"}})  # fmt: skip


@rule(scopes.fsdp)
def sharding_needs_gpus(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """accelerate 1.11.0 state.py: CPU ranks cannot use FSDP, and train as under DDP."""
    if gpu.device != "cpu":
        return None
    return problem("fsdp_on_cpu", "engine", "warning", edit={"engine": sibling(job.traits, "ddp")})


@rule(scopes.fsdp)
def version_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift's settings of FSDP are those of version 2 (4.6.0 arguments/sft_args.py _init_fsdp)."""
    versions = job.traits.fsdp_versions
    if job.parallel.fsdp.version in versions:
        return None
    return problem("fsdp_version_not_supported", "parallel.fsdp.version", engine=job.engine,
                   version=job.parallel.fsdp.version, edit={"parallel.fsdp.version": versions[-1]})  # fmt: skip


@rule(scopes.fsdp)
def quantised_training_needs_version_1(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """accelerate 1.11.0 utils/fsdp_utils.py _infer_parameter_dtype fails on the names of bitsandbytes' weights."""
    if job.training.method != "qlora" or job.parallel.fsdp.version == 1:
        return None
    return problem("qlora_needs_fsdp1", "parallel.fsdp.version", edit={"parallel.fsdp.version": 1})


@rule(scopes.hugging_face)
def a_quantised_model_stays_whole(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """quantization.py: `DeepSpeed ZeRO-3 or FSDP is incompatible with PTQ-quantized models.`"""
    method = _quantised_by(job)
    if method is None or not (job.traits.zero_stage == 3 or job.traits.is_fsdp):
        return None
    return problem("quantised_model_not_sharded", "engine", engine=job.engine, method=method,
                    edit={"engine": sibling(job.traits, "zero2")})  # fmt: skip


@rule(scopes.hugging_face)
def a_quantised_model_takes_adapters(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """adapter.py: `Quantized models can only be used for the LoRA or OFT tuning.`"""
    method = _quantised_by(job)
    if method is None or job.training.method in ("lora", "qlora"):
        return None
    return problem("quantised_model_needs_lora", "training.method", method=method, edit={"training.method": "lora"})


def _quantised_by(job: Job) -> str | None:
    """Return the method of the model's quantization if its weights stay quantized; None if they do not."""
    config = job.model.hf_config.get("quantization_config")
    method = config.get("quant_method") if isinstance(config, dict) else None
    return str(method) if method and method not in _EXPANDED else None


@rule(scopes.hugging_face)
def experts_write_the_type_that_they_read(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """modeling_bailing_moe.py and modeling_bailing_moe_v2.py (own_code.py) write the outputs of experts, which autocast
    makes 16-bit, into a tensor of the type of the inputs, which is fp32 if the weights are: `Index put requires the
    source and destination dtypes match`.

    Seen on CPU with small models of both. torch checks it on every device; DeepSeek-MoE's code has the same line
    (https://github.com/hiyouga/LlamaFactory/issues/2639, 4847 and 5943, on GPUs). DeepSpeed and FSDP cast the weights.
    """
    runs_autocast = bool(job.traits.memory and job.traits.memory.autocast_bytes) and job.training.precision != "fp32"
    if shape.model_type not in WRITES_INPUT_TYPE or not runs_autocast or job.training.method != "full":
        return None
    return problem("experts_under_autocast", "engine", model_type=shape.model_type,
                   edit={"engine": sibling(job.traits, "zero2")})  # fmt: skip
