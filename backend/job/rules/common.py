"""Rules for all engines, and rules for the Hugging Face engines."""

from dataclasses import fields
from math import gcd

from backend.job.batch import can_pack, scaled_rates, written
from backend.job.checkpointing import can_checkpoint, makes_reentrant_checkpoints
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, efficiency_figures, least_gpu, named_gpu, others_gib, smallest_hosts
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, dividing, problem, registrar
from backend.job.rules.stages import counted_layers, recut
from backend.job.trained import LANGUAGE_TRAINED, ignores_freezing, trained_parts
from backend.job.traits import TRAITS, sibling
from backend.job.unestimated import is_known

RULES: list[BoundRule] = []
rule = registrar(RULES)

_NOTHING_FROZEN = {f"training.freeze.{part}": False for part in ("vision_tower", "projector", "language_model")}


@rule(scopes.everywhere)
def stage_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Under USE_MCA=1, stages other than pt, sft, dpo silently fall through to the Hugging Face path (tuner.py).

    LLaMA-Factory 0.9.5 has no GRPO (hparams/finetuning_args.py, stage). ms-swift's Megatron has it only with vLLM
    (4.6.0 megatron/arguments/megatron_args.py: `use_vllm must be True for Megatron GRPO`), which was not tried yet.
    traits.py says why FSDP 2 has none.
    """
    stages, training = job.traits.stages, job.training
    if training.stage in stages:
        return None
    of_stage = [traits for traits in TRAITS.values() if training.stage in traits.stages]
    able = [traits for traits in of_stage if training.method in traits.methods]
    offered = min(
        able or of_stage, key=lambda traits: (traits.environment != job.traits.environment, traits.zero_stage != 3)
    )
    if training.stage == "grpo":
        own = {"swift-megatron": "grpo_on_megatron", "swift-fsdp": "grpo_under_fsdp"}
        code = own.get(job.engine, "grpo_needs_swift")
        return problem(code, "training.stage", engine=job.engine, edit={"engine": offered.engine})
    return problem("stage_not_supported", "training.stage", engine=job.engine, stages=", ".join(stages),
                   edit={"engine": offered.engine})  # fmt: skip


@rule(scopes.everywhere)
def method_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter never reads finetuning_type: LoRA there would silently train everything."""
    methods, stages = job.traits.methods, job.traits.stages
    if job.training.method in methods and job.training.stage in stages:
        return None
    of_stage = [traits for traits in TRAITS.values() if job.training.stage in traits.stages]
    able = [traits for traits in of_stage if job.training.method in traits.methods]
    if not able:
        methods = of_stage[0].methods
        return problem("method_not_with_stage", "training.method", stage=job.training.stage, method=job.training.method,
                       methods=", ".join(methods), edit={"training.method": methods[0]})  # fmt: skip
    if job.training.method in methods:
        return None
    offered = min(able, key=lambda traits: traits.is_megatron != job.traits.is_megatron).engine
    choices: dict[str, dict[str, object]] = {"engine": {"engine": offered}, "method": {"training.method": methods[0]}}
    values = {"engine": job.engine, "method": job.training.method, "methods": ", ".join(methods),
              "offered": offered, "fallback": methods[0]}  # fmt: skip
    return Problem(code="method_not_supported", field="training.method", values=values, choices=choices)


@rule(scopes.everywhere)
def model_type_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory and ms-swift refuse model types that are not in the lists of their Megatron.

    A type that is also unknown here may be newer than the list of mcore-bridge. Then the preflight decides, which runs
    ms-swift's own parser on the nodes.
    """
    allowed = job.traits.model_types
    if allowed is None or not shape.model_type or shape.model_type in allowed:
        return None
    if job.traits.environment == "swift" and not is_known(shape):
        return None
    return problem("model_type_not_supported", "model", engine=job.engine, model_type=shape.model_type,
                   edit={"engine": sibling(job.traits, "ddp")})  # fmt: skip


@rule(scopes.everywhere)
def precision_runs_on_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """bf16 needs Ampere or later; on a CPU the Hugging Face path trains in fp32."""
    if gpu.device == "cpu" and not job.traits.is_megatron and job.training.precision != "fp32":
        return problem("precision_on_cpu", "training.precision", edit={"training.precision": "fp32"})
    if job.training.precision == "bf16" and not gpu.supports_bf16:
        return problem("no_bf16", "training.precision", gpu=gpu.name, edit={"training.precision": "fp16"})
    return None


@rule(scopes.everywhere)
def trainable_layers_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """`partial` trains the last layers, so the model must have that many."""
    layers = job.training.trainable_layers
    if job.training.method != "partial" or layers <= shape.layers:
        return None
    return problem("too_many_trainable_layers", "training.trainable_layers", layers=layers, limit=shape.layers,
                    edit={"training.trainable_layers": shape.layers})  # fmt: skip


@rule(scopes.everywhere)
def something_is_trained(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A vision-language model with all three parts frozen has no gradient."""
    freeze = job.training.freeze
    frozen = freeze.vision_tower and freeze.projector and freeze.language_model
    if not shape.vision or not frozen or job.training.method in ("lora", "qlora"):
        return None
    return problem("nothing_trained", "training.freeze.language_model", edit={"training.freeze.language_model": False})


@rule(scopes.everywhere)
def freeze_has_effect(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The freeze switches name parts that text models do not have."""
    freeze = job.training.freeze
    if shape.vision or not (freeze.vision_tower or freeze.projector or freeze.language_model):
        return None
    return problem("freeze_without_vision", "training.freeze.vision_tower", "warning", edit=dict(_NOTHING_FROZEN))


@rule(scopes.llamafactory_trainer)
def freezing_knows_the_parts(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/visual.py get_forbidden_modules freezes parts of COMPOSITE_MODELS alone."""
    freeze = job.training.freeze
    if not (freeze.vision_tower or freeze.projector or freeze.language_model):
        return None
    if not ignores_freezing(job, shape.model_type):
        return None
    return problem("freeze_ignored_for_type", "training.freeze.vision_tower", "warning", model_type=shape.model_type,
                   edit=dict(_NOTHING_FROZEN))  # fmt: skip


@rule(scopes.llamafactory)
def freezing_finds_the_language_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """trained_parts says why LLaMA-Factory 0.9.5 trains the layers of Qwen3-Omni in spite of the switch."""
    if not job.training.freeze.language_model or ignores_freezing(job, shape.model_type) or not shape.vision:
        return None
    if (shape.model_type, job.traits.environment) not in LANGUAGE_TRAINED:
        return None
    return problem("freeze_misses_language", "training.freeze.language_model", "warning", model_type=shape.model_type,
                   edit={"training.freeze.language_model": False})  # fmt: skip


@rule(scopes.everywhere)
def freezing_reaches_the_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's pre-training workflow never freezes anything."""
    freeze = job.training.freeze
    frozen = freeze.vision_tower or freeze.projector or freeze.language_model
    if not shape.vision or not frozen or job.training.stage != "pt" or job.traits.freezes_in_pretraining:
        return None
    return problem("freeze_ignored_in_pt", "training.freeze.vision_tower", "warning", engine=job.engine,
                   edit=dict(_NOTHING_FROZEN))  # fmt: skip


@rule(scopes.everywhere)
def pretraining_packs(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory joins documents in stage pt by default (hparams/parser.py); a job file states it."""
    training = job.training
    if training.stage != "pt" or training.packing:
        return None
    return problem("pretraining_not_packed", "training.packing", "note",
                   edit={"training.packing": True} if can_pack(job) else None)  # fmt: skip


@rule(scopes.llamafactory)
def pairs_are_not_packed(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory packs no preference data (data/processor/pairwise.py, feedback.py), but cuts them one token earlier
    (data_args.py)."""
    if job.training.stage in ("pt", "sft") or not job.training.packing:
        return None
    return problem("pairs_not_packed", "training.packing", "warning", edit={"training.packing": False})


@rule(scopes.hugging_face)
def a_reward_model_checkpoints_without_reentry(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """DDP looks for unused parameters, because the value head's wrapper is no PreTrainedModel and the output layer gets
    no gradient. Reentrant checkpointing, LLaMA-Factory's default, then dies: "Expected to mark a variable ready only
    once" (transformers 5.6.0 trainer.py _build_accelerator_args; seen with LLaMA-Factory 0.9.5)."""
    training = job.training
    is_whole = training.stage == "rm" and training.method not in ("lora", "qlora")
    if not is_whole or job.engine != "llamafactory-ddp" or not makes_reentrant_checkpoints(job):
        return None
    return problem("reward_model_reentrant", "training.stage",
                   edit={"extra": {**job.extra, "use_reentrant_gc": False}})  # fmt: skip


@rule(scopes.llamafactory)
def image_layers_checkpoint_without_reentry(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Each layer with cross-attention reads the same vectors of the images. If these need a gradient, every reentrant
    checkpoint runs the backward pass of the projector again: "Trying to backward through the graph a second time".

    They need one if the projector or the tower is trained, and with LoRA, because PEFT gives the inputs of the tower a
    gradient (VisionShape.patches_need). Seen with LLaMA-Factory 0.9.5 and transformers 5.6.0. LLaMA-Factory's
    checkpoints are never reentrant with FSDP 2 (model/model_utils/checkpointing.py).
    """
    if not makes_reentrant_checkpoints(job):
        return None
    if shape.vision is None or not shape.vision.keys:
        return None
    trained, method = trained_parts(job, shape), job.training.method
    # `partial` trains the projector too, but not the tower (model/adapter.py _setup_freeze_tuning).
    if not trained.merger and method != "lora" and (not trained.tower or method == "partial"):
        return None
    edit: dict[str, object] = {"extra": {**job.extra, "use_reentrant_gc": False}}
    return problem("image_layers_reentrant", "parallel.recompute", model_type=shape.model_type, edit=edit)


@rule(scopes.hugging_face)
def shared_keys_checkpoint_without_reentry(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The last layers of Gemma 3n and of small Gemma 4 models read keys and values of an earlier layer. A reentrant
    checkpoint cuts the way of their gradients, so every weight up to that layer gets a wrong one.

    Seen with transformers 5.6.0 and LLaMA-Factory 0.9.5's checkpoints (tests/engines/test_shared_keys.py).
    """
    shared_layers = shape.layers_with_shared_keys
    # What is trained alone above the layer with the keys gets right gradients.
    is_above = job.training.method == "partial" and job.training.trainable_layers <= shared_layers
    if not shared_layers or is_above or not can_checkpoint(job, shape.model_type):
        return None
    if not makes_reentrant_checkpoints(job):
        return None
    swift = job.traits.environment == "swift"
    setting = {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if swift else {"use_reentrant_gc": False}
    return problem("shared_keys_reentrant", "parallel.recompute", model_type=shape.model_type,
                   case=job.traits.environment, edit={"extra": {**job.extra, **setting}})  # fmt: skip


@rule(scopes.llamafactory)
def a_reward_model_resumes(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory cannot resume a reward model (Job.can_resume)."""
    if job.can_resume:
        return None
    return problem("reward_model_starts_over", "training.stage", "note")


@rule(scopes.everywhere)
def timeout_is_sane(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory's examples set 5.7 years: a hung collective then never ends."""
    if job.training.ddp_timeout_s <= 86_400:
        return None
    return problem("timeout_too_long", "training.ddp_timeout_s", "warning", hours=job.training.ddp_timeout_s // 3600,
                    edit={"training.ddp_timeout_s": 1800})  # fmt: skip


@rule(scopes.everywhere)
def gpus_are_alike(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Ranks hold equal shares, so the node whose GPUs have the least memory limits a plan."""
    smallest = smallest_hosts(job.cluster)
    if not smallest:
        return None
    named, nodes = named_gpu(job.cluster), ", ".join(host.name for host in smallest)
    least = round(least_gpu(job.cluster).memory_gib, 1)
    others = others_gib(job.cluster)
    if others is None:
        return problem("gpu_memory_smaller", "cluster.gpu", "warning", nodes=nodes, least=least, gpu=named.name,
                        named=round(named.memory_gib, 1))  # fmt: skip
    return problem("gpu_memory_mixed", "cluster.gpu", "warning", nodes=nodes, least=least, others=round(others, 1))


@rule(scopes.everywhere)
def calibration_is_of_this_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A measurement of another GPU is not valid for this one."""
    known = job.cluster.calibration
    if known.holds_for(job.cluster.gpu):
        return None
    measured = known.gpu if isinstance(known.gpu, str) else "another GPU"
    return problem("calibration_other_gpu", "cluster.calibration.gpu", "warning", measured=measured, gpu=gpu.name,
                    edit={f"cluster.calibration.{item.name}": item.default for item in fields(known)})  # fmt: skip


@rule(scopes.everywhere)
def calibration_is_of_these_constants(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A ratio to an estimate is not valid after the constants were fitted again."""
    known, current = job.cluster.calibration, efficiency_figures().version
    if known.time_ratio is None or known.constants in (None, current) or not known.holds_for(job.cluster.gpu):
        return None
    return problem("calibration_outdated", "cluster.calibration.constants", "warning", run=known.run or "-",
                    measured=known.constants, current=current)  # fmt: skip


@rule(scopes.everywhere)
def calibration_is_of_this_engine(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Engines use memory differently, so a ratio of one engine is not used for another."""
    known = job.cluster.calibration
    if known.memory_ratio is None or known.engine == job.engine or not known.holds_for(job.cluster.gpu):
        return None
    return problem("calibration_other_engine", "cluster.calibration.engine", "note",
                    measured=known.engine or "-", engine=job.engine)  # fmt: skip


@rule(scopes.everywhere)
def calibration_is_of_this_training(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The memory of another method or length is not corrected. The estimate compares the model too."""
    known, training = job.cluster.calibration, job.training
    if known.training is None or not known.holds_for(job.cluster.gpu):
        return None
    _, method, length, *fp8 = known.training.split(" ")
    if (method, int(length), bool(fp8)) == (training.method, training.cutoff_len, job.has_fp8_products):
        return None
    measured = ", ".join((method, f"cutoff_len {length}", *fp8))
    return problem("calibration_other_training", "cluster.calibration.training", "note", measured=measured)


@rule(scopes.everywhere)
def ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: `world_size (N) is not divisible by M`."""
    if job.world_size % job.model_parallel == 0:
        return None
    parallel = job.parallel
    heads, layers = (shape.heads, counted_layers(job, shape)) if is_known(shape) else (0, 0)
    sizes = {
        "parallel.tensor": (parallel.tensor, gcd(heads, job.cluster.gpus_per_node)),
        "parallel.pipeline": (parallel.pipeline, layers),
        "parallel.context": (parallel.context, 0),
    }
    return problem("ranks_not_divisible", "parallel.tensor", ranks=job.world_size, product=job.model_parallel,
                    edit=recut(job, dividing(job.world_size, sizes)))  # fmt: skip


@rule(scopes.everywhere)
def global_batch_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Every replica trains on whole micro-batches."""
    batch = job.training.global_batch_size
    unit = job.training.micro_batch_size * job.data_parallel
    if batch is None or unit == 0 or (batch % unit == 0 and batch >= unit):
        return None
    nearest = max(1, round(batch / unit)) * unit
    return problem("global_batch_not_divisible", "training.global_batch_size", wanted=batch, unit=unit,
                    nearest=nearest, edit={"training.global_batch_size": nearest})  # fmt: skip


@rule(scopes.everywhere)
def learning_rate_is_of_this_batch(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A learning rate suits the global batch it was chosen for; no engine scales it."""
    chosen_for, rate = job.training.learning_rate_batch, job.training.learning_rate
    if chosen_for is None or job.global_batch in (0, chosen_for):
        return None
    growth = job.global_batch / chosen_for
    rates = scaled_rates(rate, growth)
    values = {"rate": written(rate), "chosen_for": chosen_for, "batch": job.global_batch, "growth": written(growth)}
    keep_rate: dict[str, object] = {"training.learning_rate_batch": job.global_batch}
    choices = {name: {"training.learning_rate": scaled, **keep_rate} for name, scaled in rates.items()}
    return Problem(code="learning_rate_batch", field="training.learning_rate", severity="note",
                   values=values | {name: written(scaled) for name, scaled in rates.items()},
                   choices={**choices, "keep": keep_rate})  # fmt: skip


def template_without_thoughts(model: str, template: str) -> str | None:
    """Return the template that an Instruct model needs instead of the thinking one; None if it fits.

    Source: LLaMA-Factory 0.9.5 src/llamafactory/extras/constants.py, register_model_group.
    """
    name = model.rstrip("/").rpartition("/")[2].lower()
    thinks = template == "qwen3_vl" or (template == "qwen3" and "2507" in name)
    return f"{template}_nothink" if thinks and "instruct" in name and "qwen3" in name else None


@rule(scopes.llamafactory)
def template_suits_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The thinking template trains Instruct models, which never think, to answer with empty thoughts."""
    template = job.training.template
    if not template or not job.model.path:
        return None
    replacement = template_without_thoughts(job.model.path, template)
    if replacement is None:
        return None
    return problem("thinking_template", "training.template", "warning", template=template, better=replacement,
                    edit={"training.template": replacement})  # fmt: skip


@rule(scopes.hugging_face)
def parallel_sizes_are_megatrons(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face engines have data parallelism only; they would silently ignore TP, PP, CP and EP."""
    parallel = job.parallel
    sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context,
             "expert": parallel.expert, "virtual_pipeline": parallel.virtual_pipeline}  # fmt: skip
    set_sizes = {f"parallel.{name}": 1 for name, size in sizes.items() if size > 1}
    if not set_sizes:
        return None
    return problem("parallel_ignored", next(iter(set_sizes)), "warning", engine=job.engine, edit=dict(set_sizes))


@rule(scopes.hugging_face)
def recompute_is_all_or_nothing(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face engines turn gradient checkpointing on or off."""
    if job.parallel.recompute != "selective":
        return None
    return problem("selective_is_megatrons", "parallel.recompute", "warning", edit={"parallel.recompute": "full"})
