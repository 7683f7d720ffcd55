"""Rules about data that is prepared before the ranks start."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)

MANY_SAMPLES = 200_000
"""Samples from which tokenising is noted. Assumed: 1,000 samples per second, so all ranks wait three minutes."""
OTHER_WAYS = ("tokenized_path", "streaming")
"""Keys of `extra` with which no rank waits for tokenising either."""


@rule(scopes.swift)
def data_is_prepared_for_llamafactory(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift loads tokenised data of another format, and shuffles it itself."""
    prepare = job.training.prepare
    if not (prepare.tokenize or prepare.shuffle):
        return None
    edit: dict[str, object] = {"training.prepare.tokenize": False, "training.prepare.shuffle": False}
    return problem("prepare_ignored", "training.prepare.tokenize", "warning", engine=job.engine, edit=edit)


@rule(scopes.hugging_face)
def trainer_shuffles_by_itself(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face's trainer shuffles the samples anew in every epoch."""
    if not job.training.prepare.shuffle:
        return None
    edit: dict[str, object] = {"training.prepare.tokenize": True, "training.prepare.shuffle": False}
    return problem("shuffle_not_needed", "training.prepare.shuffle", "note", engine=job.engine, edit=edit)


@rule(scopes.llamafactory)
def many_samples_are_tokenised_first(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """By default LLaMA-Factory tokenises on one rank of each node. The others wait, at most for ddp_timeout."""
    samples = job.training.samples
    if samples is None or samples < MANY_SAMPLES or job.prepares_data or any(job.extra.get(key) for key in OTHER_WAYS):
        return None
    values = {"samples": f"{samples:,}", "minutes": job.training.ddp_timeout_s // 60}
    return problem("tokenise_first", "training.prepare.tokenize", "note", **values,
                   edit={"training.prepare.tokenize": True})  # fmt: skip
