"""Rules for LoRA adapters on the Hugging Face engines."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
hugging_face = registrar(RULES, lambda traits: not traits.is_megatron)
llamafactory = registrar(RULES, lambda traits: traits.environment == "llamafactory" and not traits.is_megatron)

NO_ADAPTERS = ("out_proj", "conv1d")
MAMBA_TYPES = ("falcon_h1", "mamba", "mamba2", "falcon_mamba")
TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,in_proj"
"""The linear layers of Falcon-H1 that may have adapters (transformers 5.6 modeling_falcon_h1.py)."""
CONV1D_TYPES = ("gpt2",)
CONV1D_TARGETS = "c_attn,c_proj,c_fc"
"""The layers of GPT-2 (transformers 5.6 modeling_gpt2.py)."""


@hugging_face
def adapters_suit_mamba(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """peft 0.18.1 tuners_utils.py _check_lora_target_modules_mamba raises for these modules; `all` names `out_proj`."""
    training = job.training
    if training.method not in ("lora", "qlora") or shape.model_type not in MAMBA_TYPES:
        return None
    names = training.lora.targets.split(",")
    refused = [name for name in names if name.strip() in (*NO_ADAPTERS, "all")]
    if not refused:
        return None
    kept = ",".join(name for name in names if name not in refused) or TARGETS
    modules = ", ".join("out_proj" if name.strip() == "all" else name.strip() for name in refused)
    return problem("adapters_on_mamba", "training.lora.targets", model_type=shape.model_type,
                   modules=modules, edit={"training.lora.targets": kept})  # fmt: skip


@llamafactory
def adapters_find_modules(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 looks for `Linear` in the names of classes (model_utils/misc.py find_all_linear_modules).

    GPT-2 has transformers' Conv1D instead, so `all` finds none and peft raises.
    """
    training = job.training
    if training.method not in ("lora", "qlora") or shape.model_type not in CONV1D_TYPES:
        return None
    if training.lora.targets.strip() != "all":
        return None
    return problem("adapters_find_nothing", "training.lora.targets", model_type=shape.model_type,
                   edit={"training.lora.targets": CONV1D_TARGETS})  # fmt: skip
