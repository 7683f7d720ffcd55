"""Adapters of models with a vision tower, against those that peft 0.18.1 builds.

Each figure is the parameters of adapters of rank 8 on the classes of transformers 5.6.0, on the meta device. Modules
are those that LLaMA-Factory 0.9.5 (find_all_linear_modules, patch_target_modules) and ms-swift 4.6.0 (find_all_linears,
get_multimodal_target_regex) name for `all`.
"""

import re
from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.estimate import tuning_of
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.model_layers import model_layers
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.model.vision import TOWERS
from backend.job.presets import models, resolve_gpu, resolve_model
from backend.job.rules import check
from backend.job.rules.adapters import adapted_modules
from backend.job.trained import NOT_COMPOSITE, trained_parts
from benchmarks.small_models import SMALL_MODELS, TOWER_MODELS
from tests.estimate.cases import job
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

ALL_FROZEN, TOWER, PROJECTOR, BOTH = (True, True), (False, True), (True, False), (False, False)
"""Whether the tower and the projector are frozen."""
BUILT = {
    ("qwen2_5_vl", "llamafactory-ddp"): (20_185_088, 25_760_768, 20_185_088, 25_760_768),
    ("qwen2_5_vl", "swift-ddp"): (20_185_088, 25_760_768, 20_336_640, 25_912_320),
    ("qwen3_vl", "llamafactory-ddp"): (8_716_288, 12_206_080, 8_716_288, 12_320_768),
    ("qwen3_vl", "swift-ddp"): (8_716_288, 11_862_016, 9_175_040, 12_320_768),
    ("qwen3_5", "llamafactory-ddp"): (16_232_448, 19_378_176, 16_232_448, 19_496_960),
    ("qwen3_5", "swift-ddp"): (16_232_448, 19_378_176, 16_351_232, 19_496_960),
    ("internvl", "llamafactory-ddp"): (21_823_488, 25_362_432, 21_823_488, 25_362_432),
    ("internvl", "swift-ddp"): (21_823_488, 25_362_432, 21_954_560, 25_493_504),
    ("gemma3", "llamafactory-ddp"): (14_901_248, 19_248_896, 14_901_248, 19_248_896),
    ("gemma3", "swift-ddp"): (14_901_248, 19_248_896, 14_901_248, 19_248_896),
    ("mistral3", "llamafactory-ddp"): (12_353_536, 16_875_520, 12_353_536, 16_875_520),
}


@pytest.mark.parametrize(("model_type", "engine"), BUILT)
def test_adapters_are_those_that_peft_builds(model_type: str, engine: str) -> None:
    preset = next(key for key, each in models().items() if each.hf_config["model_type"] == model_type)
    counted = []
    for tower, projector in (ALL_FROZEN, TOWER, PROJECTOR, BOTH):
        frozen = {"training.freeze.vision_tower": tower, "training.freeze.projector": projector}
        the_job = job({"model.preset": preset, "engine": engine, "training.method": "lora", **frozen})
        shape = resolve_model(the_job.model)
        parts = trained_parts(the_job, shape)
        tuning = tuning_of(the_job, shape, parts, resolve_gpu(the_job.cluster))
        counted.append(
            adapter_parameters(model_layers(shape), 8, tuning.lora_targets, parts, by_path=tuning.adapts_by_path)
        )
    assert tuple(counted) == BUILT[model_type, engine]


GLM_TOWER = {
    "depth": 2, "hidden_size": 256, "num_heads": 4, "out_hidden_size": 512, "intermediate_size": 1024,
    "image_size": 112, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
GLM_TEXT = {
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512,
    "intermediate_size": 1024, "vocab_size": 1024, "head_dim": 64,
}  # fmt: skip
GLM_EXPERTS = {
    "n_routed_experts": 4, "moe_intermediate_size": 128, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "engine", "built"),
    [
        ("glm4v", "llamafactory-ddp", (118_784, 180_224, 131_072)),
        ("glm4v_moe", "llamafactory-ddp", (105_472, 166_912, 142_336)),
        ("glm4v", "swift-ddp", (118_784, 180_224, 118_784 + 45_056)),
    ],
)
def test_modules_of_a_merger_with_names_of_the_language_model_have_adapters(
    name: str, engine: str, built: tuple[int, ...]
) -> None:
    """LLaMA-Factory adapts the merger's `down_proj` of GLM-4V. ms-swift adapts its four nn.Linear, not its Conv2d."""
    experts = GLM_EXPERTS if name == "glm4v_moe" else {}
    config = {"model_type": name, "text_config": {**GLM_TEXT, **experts}, "vision_config": GLM_TOWER}
    counted = []
    for tower, projector in (ALL_FROZEN, TOWER, PROJECTOR):
        frozen = {"training.freeze.vision_tower": tower, "training.freeze.projector": projector}
        the_job = replace(job({"engine": engine, "training.method": "lora", **frozen}), model=Model(hf_config=config))
        shape = resolve_model(the_job.model)
        parts = trained_parts(the_job, shape)
        tuning = tuning_of(the_job, shape, parts, resolve_gpu(the_job.cluster))
        layers = model_layers(shape)
        counted.append(adapter_parameters(layers, 8, tuning.lora_targets, parts, by_path=tuning.adapts_by_path))
    assert tuple(counted) == built


LLAMA = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
NAMED = {
    "qwen3_vl": 8_716_288,
    "qwen2_5_vl": 23_794_688,
    "gemma3": 16_394_240,
    "internvl": 23_003_136,
    "mistral3": 16_875_520,
}
"""Parameters of adapters on the modules with these names, which peft finds in every part."""


@pytest.mark.parametrize("model_type", NAMED)
def test_ms_swift_adapts_named_modules_of_a_frozen_tower(model_type: str) -> None:
    preset = next(key for key, each in models().items() if each.hf_config["model_type"] == model_type)
    frozen = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
    named = {"model.preset": preset, "engine": "swift-ddp", "training.method": "lora", "training.lora.targets": LLAMA}
    the_job = job({**named, **frozen})
    shape = resolve_model(the_job.model)
    parts = trained_parts(the_job, shape)
    assert adapter_parameters(model_layers(shape), 8, LLAMA, parts, by_path=True) == NAMED[model_type]
    warned = [problem.code for problem in check(the_job) if problem.code == "adapters_in_frozen_part"]
    assert warned == ["adapters_in_frozen_part"] * (model_type != "qwen3_vl")
    assert not trained_parts(job({**named, **frozen, "engine": "llamafactory-ddp"}), shape).vision


@pytest.mark.parametrize(
    ("model_type", "targets", "vision", "parts"),
    [
        ("internvl", "down_proj,fc1", 24 * 8 * (1024 + 4096), ["vision_tower"]),
        (
            "qwen3_vl",
            "down_proj,linear_fc1",
            24 * 8 * (1024 + 4096) + 4 * 8 * (4096 + 4096),
            ["vision_tower, projector"],
        ),
        ("qwen3_vl", "down_proj,fc1", 0, []),
    ],
)
def test_ms_swift_adapts_the_ffn_of_a_frozen_tower_by_its_names(
    model_type: str, targets: str, vision: int, parts: list[str]
) -> None:
    """The FFN of Qwen3-VL's blocks and its four mergers have the same names (transformers 5.6 modeling_qwen3_vl.py)."""
    preset = next(key for key, each in models().items() if each.hf_config["model_type"] == model_type)
    named = {"model.preset": preset, "engine": "swift-ddp", "training.method": "lora"}
    named |= {f"training.freeze.{part}": True for part in ("vision_tower", "projector")}
    of_all, of_language = (job(named, {"training.lora.targets": names}) for names in (targets, "down_proj"))
    shape = resolve_model(of_all.model)
    counted = [
        adapter_parameters(model_layers(shape), 8, each.training.lora.targets, trained_parts(each, shape), by_path=True)
        for each in (of_all, of_language)
    ]
    assert counted[0] - counted[1] == vision
    named_parts = [each.values["parts"] for each in check(of_all) if each.code == "adapters_in_frozen_part"]
    assert named_parts == parts


@pytest.mark.parametrize(("targets", "language"), [("qkv,proj", False), ("qkv,q_proj", True), ("lm_head", True)])
def test_ms_swift_adapts_a_frozen_language_model_only_by_its_own_names(targets: str, language: bool) -> None:
    preset = next(key for key, each in models().items() if each.hf_config["model_type"] == "qwen2_5_vl")
    frozen = {"training.freeze.language_model": True, "training.freeze.vision_tower": False}
    named = {"model.preset": preset, "engine": "swift-ddp", "training.method": "lora", "training.lora.targets": targets}
    the_job = job(named, frozen)
    assert trained_parts(the_job, resolve_model(the_job.model)).language is language
    assert ("adapters_in_frozen_part" in {problem.code for problem in check(the_job)}) is language


@pytest.mark.parametrize(
    ("name", "built"), [("falcon_h1", 197_888), ("nemotron_h", 57_920), ("granitemoehybrid", 138_432)]
)
def test_ms_swift_adapts_all_linear_layers_of_a_hybrid_but_mambas_out_proj(name: str, built: int) -> None:
    """Granite keeps out_proj, and its routers have a linear layer."""
    the_job = job({"engine": "swift-ddp", "training.method": "lora"})
    shape = parse_model(SMALL_MODELS[name])
    counted = adapter_parameters(model_layers(shape), 8, adapted_modules(the_job, shape), trained_parts(the_job, shape))
    assert counted == built


def test_llamafactory_trains_all_parts_of_a_type_that_it_does_not_know() -> None:
    frozen = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
    adapters = {"engine": "llamafactory-ddp", "training.method": "lora"}
    of_all, of_frozen, of_swift = (
        replace(job(adapters, edits), model=Model(hf_config=TOWER_MODELS["exaone4_5"]))
        for edits in ({}, frozen, {**frozen, "engine": "swift-ddp"})
    )
    trained = [estimate(each).stages[0].optimizer_gib for each in (of_all, of_frozen, of_swift)]
    assert trained[0] == trained[1] > trained[2]


@needs_node_environment
def test_llamafactory_does_not_know_the_parts_of_the_types_that_are_listed() -> None:
    [source] = (NODE_PYTHON.parents[1] / "lib").glob("python3*/site-packages/llamafactory/model/model_utils/visual.py")
    known = set(re.findall(r'model_type="(\w+)"', source.read_text()))
    assert known
    assert {*TOWERS} - known == NOT_COMPOSITE
