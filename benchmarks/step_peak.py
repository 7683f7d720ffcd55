"""Peak memory that torch's MemTracker counts in an optimizer step of Hugging Face models on CPU, beside our formula.

    .venv-node/bin/python -m benchmarks.step_peak [--model llama] [--json]
    .venv-node/bin/python -m benchmarks.step_peak --families [NAME ...] [--lora] [--vocabulary N] [--json]

Needs torch, transformers and peft (the node environment).

- One process, so there are no buckets of DDP.
- The models are small, but have as many tensors as large ones.
- CPU kernels save what CUDA kernels save, except for some temporary buffers. Linear attention and Mamba have no
  kernels on CPU; benchmarks/kernel_memory.py stands in for them, and liger_memory.py for Liger.
- The tensors are real: under FakeTensorMode neither experts nor images run, because their shapes depend on data. For
  the other models the peak is the same within 2%.
"""

import argparse
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from llamafactory.model.model_utils.checkpointing import get_custom_gradient_checkpointing_func
from peft import LoraConfig, get_peft_model
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForImageTextToText,
    LlamaConfig,
    MllamaConfig,
    Qwen2_5_VLConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import STATIC_BYTES
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.rules.adapters import ALTUP_TARGETS, CONV1D_TARGETS, GRANITE_TARGETS, MAMBA_TARGETS
from backend.job.rules.sparse import ENTRY_TARGETS
from backend.job.traits import TRAITS, Method
from benchmarks import kernel_memory, liger_memory
from benchmarks.cross_attention_images import cross_attention_images
from benchmarks.language_part import language_model
from benchmarks.real_modules import is_linear
from benchmarks.small_models import CROSS_ATTENTION_TOWER, NEWER_MODELS, NO_SDPA, SIZES, SMALL_MODELS

MIB = 2**20
SEQUENCE, BATCH = 256, 2
SMALL = {
    "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 4,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
VISION = {
    "depth": 4, "hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "out_hidden_size": 256,
    "deepstack_visual_indexes": [1], "num_position_embeddings": 256, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "in_channels": 3,
}  # fmt: skip
NO_CHECKPOINTS = ("nemotron_h",)
"""Models whose class has no gradient checkpointing."""
EAGER = ("bloom", *NO_SDPA)
"""Models whose class has no fused attention on CPU; the estimate counts their scores."""
ALTUP = ("gemma3n_text",)
"""Models of which peft refuses `lora_target: all`, because it names lists of projections by their numbers."""
CONNECTED = ("glm5_next_text",)
"""Models whose hyper-connections have weights in 16 bits, and compute a softmax of them (GLM-5.3)."""
TARGETS = ALTUP_TARGETS.split(",")
NAMED_TARGETS = {
    "deepseek_v4": ENTRY_TARGETS.split(","),
    "falcon_h1": MAMBA_TARGETS.split(","),
    "granitemoehybrid": GRANITE_TARGETS.split(","),
    **dict.fromkeys(ALTUP, TARGETS),
}
"""The modules that get adapters if peft refuses those of `lora_target: all`: what the rules propose."""
MADE_AS_LOADED = ("mup_vector",)
"""Buffers that a class makes in the data type in which the weights are loaded (transformers 5.6 modeling_falcon_h1.py
compute_mup_vector)."""
IMAGE, START = 4095, 4094
GRID = 16
"""Patches along an edge of the one image in each sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run."""

    config: Any
    vocabulary: int = 4096
    checkpointing: bool = True
    accumulation: int = 2
    lora: bool = False
    extra: tuple[tuple[str, int], ...] = ()
    frozen: bool = False
    """Whether the vision tower and its projector are frozen, in 16 bits."""
    liger: bool = False
    """Whether Liger's norms and functions run. Its loss is not compared here."""
    keys: Mapping[str, Any] | None = None
    """The keys of a model of benchmarks/small_models.py, which replace the sizes."""

    @property
    def settings(self) -> dict[str, Any]:
        if self.keys is not None:
            return {key: value for key, value in self.keys.items() if key != "model_type"}
        text = {**SMALL, **dict(self.extra), "vocab_size": self.vocabulary}
        if not self.sees:
            return text
        if self.crosses:
            text |= {"cross_attention_layers": [1, 3], "pad_token_id": 0}
            return {"text_config": text, "vision_config": CROSS_ATTENTION_TOWER}
        tower: dict[str, Any] = {}
        if self.config is Qwen2_5_VLConfig:
            text["rope_scaling"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
            tower = {"fullatt_block_indexes": [1, 3], "window_size": 64}
        return {"text_config": text, "vision_config": {**VISION, **tower}, "tie_word_embeddings": False}

    @property
    def sees(self) -> bool:
        """Return whether the model has a vision tower."""
        return self.config in (Qwen2_5_VLConfig, Qwen3VLConfig) or self.crosses

    @property
    def crosses(self) -> bool:
        """Return whether layers of the model attend to images."""
        return bool(self.config is MllamaConfig)


CASES = [
    Case(config=LlamaConfig),
    Case(config=LlamaConfig, accumulation=1),
    Case(config=LlamaConfig, checkpointing=False),
    Case(config=LlamaConfig, lora=True),
    Case(config=LlamaConfig, lora=True, checkpointing=False, vocabulary=512),
    Case(config=LlamaConfig, vocabulary=512),
    Case(config=Qwen3Config),
    Case(config=Qwen3Config, checkpointing=False, vocabulary=512),
    Case(config=Qwen3Config, liger=True, vocabulary=512),
    Case(config=Qwen3Config, liger=True, checkpointing=False, vocabulary=512),
    Case(config=Qwen3Config, liger=True, lora=True, vocabulary=512),
    Case(config=Qwen3Config, liger=True, lora=True, checkpointing=False, vocabulary=512),
    Case(config=Qwen3MoeConfig, extra=tuple(EXPERTS.items())),
    Case(config=Qwen3MoeConfig, extra=tuple(EXPERTS.items()), checkpointing=False, vocabulary=512),
    Case(config=Qwen3VLConfig),
    Case(config=Qwen3VLConfig, checkpointing=False),
    Case(config=Qwen3VLConfig, lora=True),
    Case(config=Qwen2_5_VLConfig, lora=True),
    Case(config=Qwen2_5_VLConfig, lora=True, checkpointing=False),
    Case(config=MllamaConfig),
    Case(config=MllamaConfig, checkpointing=False),
    Case(config=MllamaConfig, frozen=True),
    Case(config=MllamaConfig, frozen=True, checkpointing=False, vocabulary=512),
    Case(config=MllamaConfig, lora=True, vocabulary=512),
    Case(config=MllamaConfig, lora=True, checkpointing=False, vocabulary=512),
]


def family_cases(names: Iterable[str], lora: bool, vocabulary: int = SIZES["vocab_size"]) -> list[Case]:
    """Return two cases for each family, with and without checkpoints: full training or LoRA."""
    models = {name: {**keys, "vocab_size": vocabulary} for name, keys in {**SMALL_MODELS, **NEWER_MODELS}.items()}
    config, case = CONFIG_MAPPING, partial(Case, lora=lora, vocabulary=vocabulary)
    return [
        case(config=config[name], keys=models[name], checkpointing=checkpointing)
        for name in names
        for checkpointing in (True, False)
        if not (checkpointing and name in NO_CHECKPOINTS)
    ]


class _NoModules(ModTracker):
    """Follows no modules. In a model with checkpoints the hooks that follow them keep tensors which a run without them
    has freed: 0.56 of 20.65 MiB of small Llama with LoRA, where torch's profiler sees 20.11 MiB in the allocator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


_IN_FP32 = (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.softmax)


class _AsOnCuda(TorchFunctionMode):
    """Computes powers and softmax in fp32 under autocast, as autocast does on CUDA. On CPU it leaves them in 16
    bits."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = (args[0].float(), *args[1:])
        return function(*args, **(kwargs or {}))


class Tracker(MemTracker):
    """torch's MemTracker of all bytes, which it does not assign to modules."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self._mod_tracker = _NoModules()
        self.track_external(model, optimizer)

    @property
    def peak_mib(self) -> float:
        """Return the peak of the bytes alive at once."""
        [device] = self.get_tracker_snapshot("peak").values()
        return float(device["Total"]) / MIB


def main() -> None:
    """Print one line for each case, or JSON {case: [torch's MiB, ours]}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted({case.config.model_type for case in CASES}), help="default: all")
    models = (*SMALL_MODELS, *NEWER_MODELS)
    parser.add_argument("--families", nargs="*", metavar="NAME", choices=models, help="default: all of SMALL_MODELS")
    parser.add_argument("--newer", action="store_true", help="of families: those of a later transformers")
    parser.add_argument("--lora", action="store_true", help="of the families: LoRA instead of full training")
    parser.add_argument("--vocabulary", type=int, default=SIZES["vocab_size"], help="of the families")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    cases = [case for case in CASES if chosen.model in (None, case.config.model_type)]
    if chosen.families is not None or chosen.newer:
        every = NEWER_MODELS if chosen.newer else SMALL_MODELS
        names = chosen.families or list(every)
        cases = family_cases(names, chosen.lora, chosen.vocabulary)
    if chosen.json:
        print(json.dumps({_name(case): (_measure(case), _formula(case)) for case in cases}))
        return
    print(f"{'case':64} {'torch MiB':>9} {'ours MiB':>9} {'error':>7}")
    for case in cases:
        measured, formula = _measure(case), _formula(case)
        print(f"{_name(case):64} {measured:9.1f} {formula:9.1f} {formula / measured - 1:+7.2%}", flush=True)


def _name(case: Case) -> str:
    return (
        f"{case.config.model_type}, vocabulary {case.vocabulary}, accumulation {case.accumulation}"
        f"{', LoRA' if case.lora else ''}{', Liger' if case.liger else ''}{', frozen tower' if case.frozen else ''}"
        f"{'' if case.checkpointing else ', no checkpointing'}"
    )


def _formula(case: Case) -> float:
    memory = TRAITS["llamafactory-ddp"].memory
    if memory is None:
        raise RuntimeError("DDP is not modelled")
    shape = parse_model({"model_type": case.config.model_type, **case.settings})
    layers = model_layers(shape)
    vision, trained = shape.vision, Trained()
    if case.frozen or (case.lora and case.sees):
        trained = Trained(tower=False, merger=False, deep_stack=False)
    plan = Plan(
        attention="scores" if case.config.model_type in EAGER else "fused",
        sequence_length=SEQUENCE,
        micro_batch=BATCH,
        micro_batches=case.accumulation,
        recompute="full" if case.checkpointing else "none",
        images=BATCH if case.sees else 0,
        patches=(vision.image_patches if vision else 0) or GRID**2,
        image_keys=vision.keys if vision else 0,
    )
    targets = ",".join(NAMED_TARGETS.get(case.config.model_type, ["all"]))
    method: Method = "lora" if case.lora else "full"
    tuning = Tuning(
        trained=trained,
        method=method,
        lora_targets=targets,
        fused_norms=case.liger,
        fused_head_norms=case.liger,
        fused_functions=case.liger,
    )
    return float(data_parallel_memory(layers, plan, memory, tuning).peak - STATIC_BYTES) / MIB


def _measure(case: Case) -> float:
    model = built(case)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    inputs = inputs_of(case)
    make_optimizer_states(optimizer, trained)
    as_on_cuda = _AsOnCuda() if case.config.model_type in (*ALTUP, *CONNECTED) else contextlib.nullcontext()
    with as_on_cuda, Tracker(model, optimizer) as tracker:
        step(model, optimizer, inputs, case.accumulation)
    return tracker.peak_mib


def inputs_of(case: Case) -> dict[str, torch.Tensor]:
    """Return one batch for the model of a case, with labels."""
    tokens = torch.randint(0, min(case.vocabulary, START), (BATCH, SEQUENCE))
    if not case.sees:
        return {"input_ids": tokens, "labels": tokens}
    if case.crosses:
        return {"input_ids": tokens, "labels": tokens, **cross_attention_images(BATCH, SEQUENCE)}
    merged = GRID**2 // 4
    tokens[:, 0], tokens[:, 1 : 1 + merged] = START, IMAGE
    kinds = (tokens == IMAGE).int()
    pixels = torch.randn(BATCH * GRID**2, 3 * 2 * 16 * 16)
    grid = torch.tensor([[1, GRID, GRID]] * BATCH)
    images = {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}
    return {"input_ids": tokens, "labels": tokens, **images}


def built(case: Case) -> Any:
    """Return the model of a case, in training."""
    kernel_memory.install(case.config.model_type)
    build = AutoModelForImageTextToText.from_config if case.sees else language_model
    special = {"image_token_id": IMAGE, "vision_start_token_id": START} if case.sees else {"use_cache": False}
    if case.crosses:
        special = {}
    config = case.config(**case.settings, **special)
    # LLaMA-Factory casts every trained weight to fp32; xIELU creates its own in bf16.
    attention = "eager" if config.model_type in EAGER else "sdpa"
    model = build(config, attn_implementation=attention).float().train()
    base = model
    if case.liger:
        liger_memory.install(model)
    if case.frozen:
        for part in (model.model.vision_model, model.model.multi_modal_projector):
            part.to(torch.bfloat16).requires_grad_(False)
    if case.lora:
        _to_16_bits(model)
        model = get_peft_model(model, LoraConfig(r=8, target_modules=_targets(case, model)))
    if case.checkpointing:
        _checkpoint(base, case)
    return model


def _to_16_bits(model: Any) -> None:
    """Cast the weights, except those that the class loads in fp32 in every case (transformers 5.19 modeling_utils.py,
    `_keep_in_fp32_modules_strict`)."""
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, weight in model.named_parameters():
        if not any(f".{part}." in f".{name}." for part in kept):
            weight.data = weight.data.to(torch.bfloat16)
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in MADE_AS_LOADED:
            buffer.data = buffer.data.to(torch.bfloat16)


def _checkpoint(model: Any, case: Case) -> None:
    """Switch gradient checkpointing on. Inputs of frozen parts need gradients, as transformers and PEFT do it.

    LLaMA-Factory's own function does not in full training (model/model_utils/checkpointing.py). So reentrant
    checkpoints work with a frozen tower. If it has a backward pass, each checkpoint of a layer that reads images runs
    it again.
    """
    is_reentrant = case.frozen or not case.crosses
    if case.crosses and not case.lora:
        function = partial(checkpoint, use_reentrant=is_reentrant)
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
        return
    if case.sees and case.lora and not case.crosses:
        function = get_custom_gradient_checkpointing_func(partial(checkpoint, use_reentrant=True))
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    else:
        model.gradient_checkpointing_enable({"use_reentrant": is_reentrant})
    model.enable_input_require_grads()


def _targets(case: Case, model: torch.nn.Module) -> list[str] | str:
    """Return the modules that get adapters: those that LLaMA-Factory finds for `lora_target: all`, by the names of
    their classes (model/model_utils/misc.py find_all_linear_modules). A router that returns several tensors is none.
    """
    if case.sees:
        # LLaMA-Factory leaves out the frozen tower (model/model_utils/visual.py patch_target_modules).
        return rf".*language_model.*\.({'|'.join(TARGETS)})"
    if case.keys is None:
        return TARGETS
    if case.config.model_type in NAMED_TARGETS:
        return NAMED_TARGETS[case.config.model_type]
    names = {name.rpartition(".")[2] for name, module in model.named_modules() if is_linear(module)}
    return sorted(names - {"lm_head"}) or CONV1D_TARGETS.split(",")


def make_optimizer_states(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter]) -> None:
    """Prepare the optimizer as after a first step. A real first step would double the time."""
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def step(model: Any, optimizer: torch.optim.Optimizer, inputs: dict[str, torch.Tensor], accumulation: int) -> None:
    """Run one optimizer step."""
    for _ in range(accumulation):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
