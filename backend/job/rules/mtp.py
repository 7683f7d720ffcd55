"""Rules of layers for multi-token prediction (MTP): backend/job/mtp.py says who trains them."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.mtp import KEY, MCA_LOADS, MCA_LOADS_LATER, requested_layers
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
megatron = registrar(RULES, lambda traits: traits.is_megatron)
mcore_adapter = registrar(RULES, lambda traits: traits.is_megatron and traits.environment == "llamafactory")


@mcore_adapter
def mtp_weights_load(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter ends with "missing_keys" or "unexpected_keys" (models/model_factory.py from_pretrained).

    It has names for the weights of few model types, and for some of them those of later versions of Megatron-Core.
    """
    if not requested_layers(job) or shape.model_type in MCA_LOADS:
        return None
    is_later = shape.model_type in MCA_LOADS_LATER
    return problem("mtp_not_loaded", f"extra.{KEY}", "warning" if is_later else "error", model_type=shape.model_type,
                   case="later" if is_later else "", edit={"extra": _without(job)})  # fmt: skip


@megatron
def mtp_recomputes_single_layers(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core transformer/multi_token_prediction.py: "recompute_num_layers must be 1 for MTP recompute"."""
    if not requested_layers(job) or job.recompute != "full" or job.parallel.recompute_num_layers in (None, 1):
        return None
    return problem("mtp_recompute_layers", "parallel.recompute_num_layers",
                   layers=job.parallel.recompute_num_layers, edit={"parallel.recompute_num_layers": 1})  # fmt: skip


def _without(job: Job) -> dict[str, object]:
    return {key: value for key, value in job.extra.items() if key != KEY}
