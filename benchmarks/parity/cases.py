"""The cases of the parity suite, as data. Each is compared with the reference of its group: one rank, same samples.

The global batch of every case is 4 samples a step, in the order of the data set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tools import tiny_data

Model = Literal["text", "vision", "experts", "qwen2_vl", "qwen2_5_vl"]
Values = Mapping[str, Any]
EMPTY: Values = {}
BATCH = 4
DDP, FSDP, MEGATRON = "llamafactory-ddp", "llamafactory-fsdp", "llamafactory-megatron"
ZERO2, ZERO3 = "llamafactory-zero2", "llamafactory-zero3"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One tiny training."""

    group: str
    """Cases of a group have the same model, data, precision and trained weights."""
    plan: str
    """The words of the table."""
    engine: str = DDP
    ranks: int = 1
    job_ranks: int = 0
    """Ranks in the job file; 0: those that run."""
    model: Model = "text"
    values: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the job, by path."""
    micro: int = BATCH // 2
    """Samples of a micro-batch."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys changed in the rendered configuration: what the rules refuse, or a CPU node's files leave out."""

    resumed: bool = False
    """Whether the run ends after half of its steps and goes on from its checkpoint."""
    explained: str = ""
    """A key of EXPLAINED, if the case is known to differ from its reference."""

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """Return the precision whose noise the comparison has. A resumed run computes what the whole run does."""
        if self.resumed:
            return "fp32"
        return "bf16" if self.engine == MEGATRON or self.changes.get("bf16") else "fp32"

    @property
    def reference(self) -> str:
        """Return the name of the case that it is compared with: one rank, the same run again, or without a stop."""
        if self.resumed:
            return f"{self.group}: {self.plan.removesuffix(', resumed')}"
        return f"{self.group}: {AGAIN if self.plan == ONE else ONE}"

    @property
    def name(self) -> str:
        return f"{self.group}: {self.plan}"


ONE, AGAIN = "one rank", "one rank again"
FSDP1 = {"parallel.fsdp.version": 1}
LORA = {"training.method": "lora"}
PT = {"training.stage": "pt", "training.dataset": tiny_data.TEXT, "training.template": None}
DPO = {"training.stage": "dpo", "training.dataset": tiny_data.PREFERENCE}
PACKED = {"training.packing": True, "training.cutoff_len": 96}
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
TRAINED = {"training.freeze.vision_tower": False, "training.freeze.projector": False}

IMAGES = {"vision", "qwen2_vl", "qwen2_5_vl"}

_PLANS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DDP": (DDP, {}),
    "ZeRO-2": (ZERO2, {}),
    "ZeRO-3": (ZERO3, {}),
    "FSDP 1": (FSDP, FSDP1),
    "FSDP 2": (FSDP, {}),
}


def hugging_face(
    group: str, *plans: str, values: Values = EMPTY, changes: Values = EMPTY, model: Model = "text"
) -> list[Case]:
    """Return one rank, one rank again and two ranks of each plan."""
    base = Case(group=group, plan=ONE, model=model, values=values, changes=changes)
    cases = [base, replace(base, plan=AGAIN)]
    for plan in plans:
        engine, own = _PLANS[plan]
        cases.append(replace(base, plan=f"{plan}, 2 ranks", engine=engine, ranks=2, values={**values, **own}))
    return cases


ALL = tuple(_PLANS)
HUGGING_FACE = [
    *hugging_face("sft, fp32", *ALL),
    *hugging_face(
        "sft, bf16", "DDP", "ZeRO-2", "FSDP 1", "FSDP 2", changes={"bf16": True, "use_cpu": True, "ddp_backend": "gloo"}
    ),
    *hugging_face("sft, packed", "DDP", "ZeRO-3", "FSDP 2", values=PACKED),
    *hugging_face("sft, LoRA", *ALL, values=LORA),
    *hugging_face("pt", "DDP", "ZeRO-3", "FSDP 2", values=PT),
    *hugging_face("dpo", "DDP", "ZeRO-3", "FSDP 2", values=DPO),
    *hugging_face("images", *ALL, model="vision", values=TRAINED),
    *hugging_face("images, frozen", "DDP", "ZeRO-3", "FSDP 2", model="vision", values=FROZEN),
    *hugging_face("experts", "DDP", "ZeRO-3", "FSDP 2", model="experts"),
]

TENSOR, PIPELINE = {"parallel.tensor": 2}, {"parallel.pipeline": 2}


def megatron(
    group: str, *plans: str, values: Values = EMPTY, changes: Values = EMPTY, model: Model = "text", micro: int = 2
) -> list[Case]:
    """Return one rank of Megatron-Core, one rank again, and each plan."""
    values = {"training.precision": "bf16", "parallel.distributed_optimizer": False, **values}
    base = Case(
        group=f"Megatron, {group}", plan=ONE, engine=MEGATRON, model=model, values=values, changes=changes, micro=micro
    )
    cases = [base, replace(base, plan=AGAIN)]
    for plan in plans:
        ranks, own, changed = _MEGATRON[plan]
        case = replace(base, plan=plan, ranks=ranks, values={**values, **own}, changes={**changes, **changed})
        # The rules refuse TP for models with images: the files are those of one rank, with one key changed.
        if model in IMAGES and own == TENSOR:
            refused = {"tensor_model_parallel_size": 2, **case.changes}
            case = replace(case, values=values, changes=refused, job_ranks=1, explained="vision_tensor")
        cases.append(case)
    return cases


_MEGATRON: Mapping[str, tuple[int, Values, Values]] = {
    "DP2": (2, {}, {}),
    "DP2, distributed optimizer": (2, {"parallel.distributed_optimizer": True}, {}),
    "TP2": (2, TENSOR, {}),
    # A CPU node's files leave it out.
    "TP2, sequence parallel": (2, TENSOR, {"sequence_parallel": True}),
    "PP2": (2, PIPELINE, {}),
    "TP2 x PP2": (4, TENSOR | PIPELINE, {}),
    "TP2 x DP2": (4, TENSOR, {}),
    "CP2": (2, {"parallel.context": 2}, {}),
    "EP2": (2, {"parallel.expert": 2}, {}),
    "EP2 x PP2": (4, {"parallel.expert": 2} | PIPELINE, {}),
    "per-token loss": (1, {}, {"calculate_per_token_loss": True}),
    "per-token loss, DP2": (2, {}, {"calculate_per_token_loss": True}),
}
"""Plan -> ranks, changes to the job, keys changed in the configuration."""

MEGATRON_CASES = [
    *megatron("sft", "DP2", "DP2, distributed optimizer", "TP2", "TP2, sequence parallel", "PP2", "TP2 x PP2",
              "TP2 x DP2", "CP2", "per-token loss", "per-token loss, DP2"),
    *megatron("sft, packed", "DP2", "TP2", "PP2", values=PACKED),
    *megatron("pt", "DP2", "TP2", "PP2", values=PT),
    *megatron("dpo", "DP2", "TP2", "PP2", values=DPO),
    *megatron("images, frozen", "DP2", "TP2", "TP2, sequence parallel", "PP2", model="vision", values=FROZEN),
    *megatron("images, per-token loss", "DP2", "PP2", model="vision", values=TRAINED,
              changes={"calculate_per_token_loss": True}),
    *megatron("1 image", "PP2", "DP2", "TP2", "TP2, sequence parallel", model="vision", values=TRAINED, micro=1),
    *(case for family in ("qwen2_vl", "qwen2_5_vl") for case in
      megatron(f"{family}, 2 images", "PP2", "TP2", "TP2, sequence parallel", model=family, values=TRAINED)),
    *megatron("2 images", "PP2", "DP2", "TP2", "TP2, sequence parallel", model="vision", values=TRAINED),
    *megatron("4 images", "PP2", "TP2", "TP2, sequence parallel", model="vision", values=TRAINED, micro=4),
    *megatron("experts", "DP2", "EP2", "PP2", "EP2 x PP2", model="experts"),
    *megatron("experts, no auxiliary loss", "DP2", "EP2", model="experts", changes={"moe_aux_loss_coeff": 0.0}),
    # With EP, LLaMA-Factory pads to cutoff_len instead of the next 64 tokens.
    *megatron("experts, padded by EP", "DP2", "EP2", model="experts", values={"training.cutoff_len": 256}),
    *megatron("experts, padded by EP, no auxiliary loss", "EP2", model="experts",
              values={"training.cutoff_len": 256}, changes={"moe_aux_loss_coeff": 0.0}),
]  # fmt: skip

RESUMED = [
    replace(case, plan=f"{case.plan}, resumed", resumed=True)
    for case in (*HUGGING_FACE, *MEGATRON_CASES)
    if case.group in ("sft, fp32", "Megatron, sft")
    and case.plan not in (ONE, AGAIN, "CP2", "per-token loss", "per-token loss, DP2", "TP2 x DP2")
]

_DIFFER = {
    "Megatron, experts, padded by EP: EP2": "experts_padding",
    "Megatron, sft: per-token loss": "micro_batch_means",
    "Megatron, sft: per-token loss, DP2": "micro_batch_means",
    "sft, fp32: FSDP 1, 2 ranks, resumed": "fsdp1_moments",
}
CASES: Mapping[str, Case] = {
    case.name: replace(case, explained=_DIFFER.get(case.name, case.explained))
    for case in (*HUGGING_FACE, *MEGATRON_CASES, *RESUMED)
    # Megatron-Core has no context parallelism without Transformer Engine.
    if case.plan != "CP2"
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two cases of different engines with the same data."""

    case: str
    reference: str
    explained: str = ""


PAIRS = [
    Pair(case="Megatron, sft: per-token loss", reference="sft, bf16: one rank"),
    Pair(case="Megatron, sft: one rank", reference="sft, bf16: one rank", explained="micro_batch_means"),
    Pair(case="Megatron, 2 images: one rank", reference="images: one rank"),
    Pair(case="Megatron, dpo: one rank", reference="dpo: one rank"),
    Pair(case="Megatron, pt: one rank", reference="pt: one rank", explained="first_token"),
    Pair(case="Megatron, experts, no auxiliary loss: one rank", reference="experts: one rank",
         explained="micro_batch_means"),
]  # fmt: skip
