"""Parameters on each rank are those of real Megatron-Core modules, and of whole presets those of Hugging Face's.

The modules are built afresh in the node environment, on the meta device under a fake process group; cheaper tests hold
counts that were made so once (test_parameters.py), and cannot see that an upgrade changed a module.
"""

import json

import pytest

from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.model import parse_model
from backend.job.model.families import FAMILIES
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.own_code import OWN_CODE
from backend.job.model.own_towers import OWN_TOWERS
from backend.job.model.patch_gradients import WITH_PATCH_GRADIENTS
from backend.job.model.vision import TOWERS
from backend.job.presets import models
from benchmarks.small_models import SMALL_MODELS
from tests.estimate.cases import DEEPSEEK_V32, GLM_5
from tests.estimate.printed import printed_by
from tests.nodes import needs_node_environment
from tools.write_models import read_data, read_own_code

pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment]

QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
}  # fmt: skip
QWEN2_TIED = {
    "model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
LING = read_own_code()["Ling-mini-2.0"]["config"]
# (model, tensor, pipeline, virtual, expert, expert tensor)
CASES = [
    ("llama-3.1-8b", 1, 1, 1, 1, 1),
    ("llama-3.1-8b", 2, 1, 1, 1, 1),
    ("llama-3.1-8b", 8, 1, 1, 1, 1),
    ("llama-3.1-8b", 1, 4, 2, 1, 1),
    ("llama-3.1-8b", 2, 4, 1, 1, 1),
    ("llama-3.1-70b", 8, 4, 1, 1, 1),
    ("llama-3.1-70b", 4, 8, 5, 1, 1),
    ("llama-3.1-70b", 4, 4, 5, 1, 1),
    ("qwen3-0.6b", 1, 1, 1, 1, 1),
    ("qwen3-0.6b", 1, 2, 1, 1, 1),
    ("qwen3-0.6b", 2, 2, 7, 1, 1),
    ("qwen3-0.6b", 4, 4, 1, 1, 1),
    ("qwen3-8b", 4, 1, 1, 1, 1),
    ("qwen3-8b", 2, 2, 1, 1, 1),
    ("qwen3-8b", 2, 4, 3, 1, 1),
    ("qwen3-32b", 8, 1, 1, 1, 1),
    ("qwen3-32b", 4, 2, 4, 1, 1),
    (QWEN2, 1, 1, 1, 1, 1),
    (QWEN2, 2, 2, 1, 1, 1),
    (QWEN2, 4, 4, 7, 1, 1),
    (QWEN2_TIED, 2, 1, 1, 1, 1),
    (QWEN2_TIED, 1, 4, 3, 1, 1),
    ("qwen3-30b-a3b", 1, 1, 1, 8, 1),
    ("qwen3-30b-a3b", 4, 2, 1, 4, 1),
    ("qwen3-30b-a3b", 1, 4, 3, 8, 1),
    ("qwen3-30b-a3b", 4, 1, 1, 8, 4),
    ("mixtral-8x7b", 2, 4, 1, 4, 1),
    ("mixtral-8x7b", 2, 2, 2, 8, 1),
    ("mixtral-8x7b", 4, 2, 1, 4, 4),
    ("mixtral-8x7b", 2, 2, 1, 2, 2),
    # A dense layer before those with experts
    (LING, 1, 1, 1, 8, 1),
    (LING, 2, 4, 1, 4, 1),
    (LING, 4, 2, 5, 8, 2),
    # Layers with a gated delta net and with full attention
    ("qwen3-next-80b-a3b", 2, 4, 1, 8, 1),
    ("qwen3.5-9b", 2, 4, 2, 1, 1),
    ("qwen3.5-27b", 4, 2, 1, 1, 1),
    # Layers whose attention reads the keys that an indexer chooses
    (DEEPSEEK_V32, 1, 1, 1, 8, 1),
    (DEEPSEEK_V32, 8, 1, 1, 8, 2),
    ({**DEEPSEEK_V32, "num_hidden_layers": 60}, 4, 4, 3, 8, 1),
    (GLM_5, 2, 2, 1, 16, 1),
]
SIZES = ("tensor", "pipeline", "virtual_pipeline", "expert", "expert_tensor")
# The same, and layers for multi-token prediction; the last stage is also the first, or has an embedding of its own,
# which is tied to that of the first stage or not.
WITH_MTP = [
    ("llama-3.1-8b", 2, 4, 2, 1, 1, 1),
    ("qwen3-0.6b", 1, 1, 1, 1, 1, 2),
    ("qwen3-0.6b", 2, 2, 1, 1, 1, 1),
    ("qwen3-30b-a3b", 4, 2, 1, 4, 1, 2),
    ("qwen3-30b-a3b", 4, 1, 1, 8, 4, 1),
    (LING, 2, 2, 1, 4, 1, 1),
    ("qwen3-next-80b-a3b", 2, 4, 1, 8, 1, 1),
    ("qwen3.5-9b", 2, 4, 2, 1, 1, 1),
    ({**DEEPSEEK_V32, "num_hidden_layers": 60}, 2, 2, 1, 16, 1, 1),
]


def test_every_rank_holds_what_megatron_core_builds_in_49_plans_of_14_models():
    sizes_and_mtp = [*((*case, 0) for case in CASES), *WITH_MTP]
    cases = [
        {"model": model, "world": 32, **dict(zip((*SIZES, "mtp"), sizes, strict=True))}
        for model, *sizes in sizes_and_mtp
    ]
    for case, built in zip(
        cases, printed_by("benchmarks.real_modules", "megatron", case=json.dumps(cases)), strict=True
    ):
        model = case["model"]
        shape = parse_model(models()[model].hf_config if isinstance(model, str) else model)
        layers = model_layers(shape, megatron=True, mtp=case["mtp"])
        sizes = {size: case[size] for size in SIZES}
        data = 32 // (case["tensor"] * case["pipeline"])
        plan = Plan(**sizes, data=data, sequence_length=4096, micro_batches=8)
        result = [rank_parameters(layers, plan, stage, Trained()) for stage in stages(layers, plan)]
        assert [[item.dense, item.expert] for item in result] == built, case


def test_every_preset_has_as_many_parameters_as_its_hugging_face_class():
    counted = {
        key: model_parameters(model_layers(parse_model(preset.hf_config)))
        for key, preset in models().items()
        # tests/engines/test_newer_types.py compares the others.
        if preset.hf_config["model_type"] not in {*NEWER, *NEWER_TOWERS}
    }
    assert counted == printed_by("benchmarks.real_modules", "hugging-face")


def test_every_linear_module_has_an_adapter_but_in_types_that_all_does_not_suit():
    """`all` finds no module of GPT-2, and it is refused for Gemma 3n (rules/adapters.py).

    GPT-NeoX calls its output layer `embed_out`, which `all` adapts; these adapters are not counted."""
    counted = {
        name: adapter_parameters(model_layers(parse_model(keys)), 8, "all", Trained())
        for name, keys in SMALL_MODELS.items()
    }
    built = printed_by("benchmarks.real_modules", "adapters")
    differ = {name for name, count in built.items() if counted[name] != count}
    assert differ == {"gpt2", "gpt_neox", "gemma3n_text"}
    assert built["gpt_neox"] - counted["gpt_neox"] == 8 * (256 + 512)


def test_transformers_lets_gradients_flow_to_the_patches_of_the_types_that_are_listed():
    assert printed_by("benchmarks.real_modules", "patches-need-gradients") == [
        name for name in TOWERS if name in WITH_PATCH_GRADIENTS and name not in {*NEWER_TOWERS, *OWN_TOWERS}
    ]


def test_every_type_that_config_json_describes_has_as_many_parameters_as_transformers_builds():
    outcomes = printed_by("benchmarks.families", "--json")
    by_status = {status: {name for name, each in outcomes.items() if each["status"] == status}
                 for status in ("exact", "wrong", "not_built")}  # fmt: skip
    assert by_status["wrong"] == set()
    assert len(by_status["exact"]) >= 109
    # The page of models (tools/write_models.py) shows this.
    kept = {name: each["status"] for name, each in read_data()["types"].items()}
    assert {name: each["status"] for name, each in outcomes.items()} == kept
    # Others are parts of a model of another type.
    described = {name.removesuffix("_text").removesuffix("_thinker") for name in by_status["exact"]}
    assert {*FAMILIES} - {*OWN_CODE, *NEWER} - described == {"gpt-sw3"} - described
    seen_here = {name for name in TOWERS if name.removesuffix("_thinker") not in NEWER_TOWERS}
    assert seen_here - {*OWN_CODE, *OWN_TOWERS} <= by_status["exact"]
