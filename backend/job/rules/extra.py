"""Keys of `extra` that LLaMA-Factory 0.9.5 refuses together with something else of the job (hparams/parser.py)."""

from collections.abc import Callable
from dataclasses import dataclass

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
llamafactory = registrar(RULES, lambda traits: traits.environment == "llamafactory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clash:
    """A key, and what it does not go with."""

    key: str
    within: Callable[[Job], bool]
    other: str
    """What of the job it is, in technical terms that need no translation."""


def _sharded(job: Job) -> bool:
    return job.traits.zero_stage == 3


def _deepspeed(job: Job) -> bool:
    return job.traits.zero_stage > 0


def _not_sft(job: Job) -> bool:
    return job.training.stage != "sft"


def _quantised(job: Job) -> bool:
    return job.training.method == "qlora"


def _hugging_face(job: Job) -> bool:
    return not job.traits.is_megatron


def _without_limit(job: Job) -> bool:
    return job.training.max_steps is None


def _prepared(job: Job) -> bool:
    return job.prepares_data


def _gathers_all(job: Job) -> bool:
    return job.traits.is_megatron and job.parallel.moe_token_dispatcher == "allgather"  # noqa: S105 - no password


CLASHES = (
    *(
        Clash(key=key, within=_not_sft, other="training.stage: pt, dpo")
        for key in ("neat_packing", "train_on_prompt", "mask_history")
    ),
    *(Clash(key=key, within=_deepspeed, other="DeepSpeed") for key in ("use_galore", "use_apollo")),
    *(Clash(key=key, within=_hugging_face, other="torchrun") for key in ("galore_layerwise", "apollo_layerwise")),
    Clash(key="use_badam", within=lambda job: _hugging_face(job) and not _sharded(job), other="DDP, ZeRO-2, FSDP"),
    Clash(key="pissa_init", within=_sharded, other="DeepSpeed ZeRO-3"),
    Clash(key="pissa_init", within=_quantised, other="training.method: qlora"),
    Clash(key="resize_vocab", within=_quantised, other="training.method: qlora"),
    Clash(key="fp8", within=_quantised, other="training.method: qlora"),
    Clash(key="streaming", within=_without_limit, other="training.max_steps: null"),
    *(Clash(key=key, within=_prepared, other="training.prepare") for key in ("streaming", "tokenized_path")),
    Clash(key="variable_seq_lengths", within=_gathers_all, other="parallel.moe_token_dispatcher: allgather"),
)


@llamafactory()
def keys_go_with_the_job(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Raised by LLaMA-Factory's parser on every rank, after minutes of imports; the first that is found."""
    for clash in CLASHES:
        if job.extra.get(clash.key) and clash.within(job):
            rest = {key: value for key, value in job.extra.items() if key != clash.key}
            return problem("extra_clash", f"extra.{clash.key}", key=clash.key, other=clash.other,
                            edit={"extra": rest})  # fmt: skip
    return None
