"""Rules of ms-swift's Hugging Face trainers."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
swift_trainer = registrar(RULES, lambda traits: traits.environment == "swift" and not traits.is_megatron)


@swift_trainer
def packing_needs_flash_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 arguments/sft_args.py: `The "packing" feature requires a flash attention implementation.`"""
    if not job.training.packing or gpu.device != "cpu":
        return None
    return problem("packing_on_cpu", "training.packing", engine=job.engine, edit={"training.packing": False})
