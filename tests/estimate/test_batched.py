"""Arrays of plans have the same figures as single plans, on every engine. One set of formulas serves both."""

import itertools

import numpy as np
import pytest

from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.megatron_adapters import Adapters
from backend.estimate.memory.megatron_layer import Run
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.memory_traits import MEGATRON_LM_MEMORY
from backend.job.model import parse_model
from backend.job.presets import resolve_model
from backend.job.traits import TRAITS
from benchmarks.small_models import SEEING
from tests.estimate.cases import DEEPSEEK_V32, GLM_5

MODELS = {
    name: model_layers(resolve_model(Model(preset=name)))
    for name in ("llama-3.1-8b", "qwen3-30b-a3b", "qwen3-vl-8b", "deepseek-v3")
}
MODELS |= {
    f"{name} with MTP": model_layers(resolve_model(Model(preset=name)), mtp=2)
    for name in ("qwen3-vl-8b", "deepseek-v3")
}
GLM_SHARED = {**GLM_5, "index_topk_freq": 4}
MODELS |= {
    f"{keys['model_type']} on Megatron": model_layers(parse_model(keys), megatron=True)
    for keys in (DEEPSEEK_V32, GLM_SHARED)
}
MODELS["mllama"] = model_layers(parse_model(SEEING["mllama"]))
"""Dense, of experts, with a vision tower, with latent attention, with multi-token prediction, with attention over
chosen keys, with layers that read images."""
MCA = TRAITS["llamafactory-megatron"].memory
TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "host", "peak")
COUNTS = ("dense", "expert", "trained_dense", "trained_expert")

BATCHES = {
    "data": [8, 2, 4, 8, 1],
    "micro_batch": [1, 2, 1, 4, 2],
    "micro_batches": [4, 8, 16, 1, 2],
    "sequence_length": [4096, 4096, 8192, 1024, 2048],
    "images": [1, 2, 4, 8, 0],
}
SIZES = {
    "tensor": [1, 2, 4, 8, 2],
    "context": [1, 2, 1, 1, 4],
    "expert": [1, 2, 4, 8, 8],
    "expert_tensor": [1, 2, 1, 4, 2],
    "sequence_parallel": [False, True, True, False, True],
}


def each_row(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def assert_equal(together, singles, *where):
    """Compare `together`, one StageMemory of arrays, with `singles`, those of the same plans one by one."""
    for name in TERMS:
        np.testing.assert_allclose(
            getattr(together, name), [getattr(single, name) for single in singles], 1e-12, err_msg=f"{name} {where}"
        )
    for name in COUNTS:
        result = np.broadcast_to(getattr(together.parameters, name), len(singles))
        assert [getattr(single.parameters, name) for single in singles] == result.tolist(), (name, where)


@pytest.mark.parametrize(
    ("memory", "run"),
    [
        (MCA, Run(trained=Trained())),
        (MEGATRON_LM_MEMORY, Run(trained=Trained(tower=False), reference=True)),
        (MEGATRON_LM_MEMORY, Run(trained=Trained(), adapters=Adapters(rank=8))),
    ],
    ids=["mcore_adapter", "Megatron-LM with a reference", "LoRA"],
)
@pytest.mark.parametrize(
    "static",
    [
        {},
        {"recompute": "selective", "recompute_modules": ("core_attn", "layernorm", "moe_act", "mlp")},
        {"recompute": "full", "recompute_layers": 2},
        {"attention": "scores", "attention_dropout": True, "offload_fraction": 0.5, "distributed_optimizer": False},
    ],
    ids=["plain", "selective", "full", "no flash attention"],
)
def test_arrays_of_megatron_plans_give_what_single_plans_give(memory, run, static):
    columns = BATCHES | SIZES
    arrays = {name: np.array(values) for name, values in columns.items()}
    for (model, layers), (pipeline, virtual) in itertools.product(MODELS.items(), [(1, 1), (4, 1), (4, 3)]):
        fixed = {"pipeline": pipeline, "virtual_pipeline": virtual, "patches": 1764, "image_keys": 1600, **static}
        together = pipeline_memory(layers, Plan(**fixed, **arrays), memory, run)
        singles = [pipeline_memory(layers, Plan(**fixed, **row), memory, run) for row in each_row(columns)]
        assert len(together) == pipeline
        for stage, result in enumerate(together):
            assert_equal(result, [stages[stage] for stages in singles], model, pipeline, virtual, stage)


@pytest.mark.parametrize("engine", [name for name, traits in TRAITS.items() if not traits.is_megatron])
@pytest.mark.parametrize(
    "tuning",
    [
        {},
        {"trained": Trained(tower=False, language=False)},
        {"method": "lora", "pairs": True},
        {"method": "qlora"},
        {"method": "partial", "last_layers": 2, "liger": True},
        {"pairs": True, "single_precision": True},
    ],
    ids=["full", "frozen", "LoRA with pairs", "QLoRA", "last layers, Liger", "pairs in fp32"],
)
def test_arrays_of_hugging_face_plans_give_what_single_plans_give(engine, tuning):
    memory, chosen = TRAITS[engine].memory, Tuning(**{"trained": Trained(), **tuning})
    arrays = {name: np.array(values) for name, values in BATCHES.items()}
    for (model, layers), recompute in itertools.product(MODELS.items(), ("none", "full")):
        fixed = {"patches": 1764, "image_keys": 1600, "recompute": recompute}
        together = data_parallel_memory(layers, Plan(**fixed, **arrays), memory, chosen)
        singles = [data_parallel_memory(layers, Plan(**fixed, **row), memory, chosen) for row in each_row(BATCHES)]
        assert_equal(together, singles, model, recompute)
