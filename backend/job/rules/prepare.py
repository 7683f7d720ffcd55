"""Rules about data that is made ready before the ranks start."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
swift = registrar(RULES, lambda traits: traits.environment == "swift")
hugging_face = registrar(RULES, lambda traits: not traits.is_megatron)


@swift()
def data_is_prepared_for_llamafactory(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift loads tokenised data of another format, and shuffles by itself."""
    prepare = job.training.prepare
    if not (prepare.tokenize or prepare.shuffle):
        return None
    edit: dict[str, object] = {"training.prepare.tokenize": False, "training.prepare.shuffle": False}
    return problem("prepare_ignored", "training.prepare.tokenize", "warning", engine=job.engine, edit=edit)


@hugging_face()
def trainer_shuffles_by_itself(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face's trainer takes the samples in a new random order every epoch."""
    if not job.training.prepare.shuffle:
        return None
    edit: dict[str, object] = {"training.prepare.tokenize": True, "training.prepare.shuffle": False}
    return problem("shuffle_not_needed", "training.prepare.shuffle", "note", engine=job.engine, edit=edit)
