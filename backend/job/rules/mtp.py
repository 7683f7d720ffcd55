"""Rules of layers for multi-token prediction (MTP): backend/job/mtp.py says who trains them."""

from backend.job.checkpointing import makes_checkpoints, makes_reentrant_checkpoints
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.mtp import KEY, MCA_LOADED_EARLIER, MCA_LOADS_LATER, requested_layers
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)


@rule(scopes.mcore_adapter)
def mtp_weights_load(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter ends with "missing_keys" or "unexpected_keys" (models/model_factory.py from_pretrained), or with a
    ValueError (models/converter/dist_converter.py dist_convert).

    It has names for the weights of few model types. Which names are right depends on versions of nodes that no job
    says, so that these types get a warning.
    """
    if not requested_layers(job):
        return None
    model_type = shape.model_type
    case = "earlier" if model_type in MCA_LOADED_EARLIER else "later" if model_type in MCA_LOADS_LATER else ""
    return problem("mtp_not_loaded", f"extra.{KEY}", "warning" if case else "error", model_type=model_type, case=case,
                   edit={"extra": _without(job)})  # fmt: skip


@rule(scopes.megatron)
def mtp_recomputes_single_layers(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer/multi_token_prediction.py: "recompute_num_layers must be 1 for MTP recompute"."""
    if not requested_layers(job) or job.recompute != "full" or job.parallel.recompute_num_layers in (None, 1):
        return None
    return problem("mtp_recompute_layers", "parallel.recompute_num_layers",
                   layers=job.parallel.recompute_num_layers, edit={"parallel.recompute_num_layers": 1})  # fmt: skip


@rule(scopes.ddp)
def idle_layers_are_found(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """MiMo's own code builds MTP layers that no forward pass runs. DDP waits for their gradients and raises in the
    second step, unless it looks for unused parameters.

    transformers' Trainer tells DDP not to look if a model has gradient checkpointing and is no PEFT model (5.6
    trainer.py _build_accelerator_args); LLaMA-Factory does so for LoRA (0.9.5 hparams/parser.py). If DDP looks,
    reentrant checkpoints fail (tests/engines/test_idle_layers.py).
    """
    if not shape.own_mtp or shape.runs_mtp or job.world_size == 1 or job.training.method == "partial":
        return None
    is_swift, adapted = job.traits.environment == "swift", job.training.method in ("lora", "qlora")
    is_reentrant, found = makes_reentrant_checkpoints(job), job.extra.get("ddp_find_unused_parameters")
    if found is None:
        found = (is_swift and adapted) or (not makes_checkpoints(job) and (is_swift or not adapted))
    if str(found).lower() == "true" and not is_reentrant:
        return None
    edit = {**job.extra, "ddp_find_unused_parameters": True}
    if is_reentrant:
        edit |= {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if is_swift else {"use_reentrant_gc": False}
    return problem("idle_layers", "engine", model_type=shape.model_type, case=job.traits.environment,
                   edit={"extra": edit})  # fmt: skip


def _without(job: Job) -> dict[str, object]:
    return {key: value for key, value in job.extra.items() if key != KEY}
