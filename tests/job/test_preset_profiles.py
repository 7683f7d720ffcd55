"""Every preset ships with its profile, which tells what the tables tell of the same config."""

import gzip
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind, ModelLayers, operators_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import layer_counts, model_parameters, vision_parameters
from backend.job import presets, unestimated
from backend.job.data_folder import data_folder
from backend.job.job import Model
from backend.job.mapping import parse_job
from backend.job.model import ModelShape, parse_model
from backend.job.model.model_profile import FORMAT, config_digest
from backend.job.model.operators import Attention, Keep
from backend.job.preset_profiles import packed, preset_profile, profile_path
from backend.job.presets import known_model, models
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import check
from backend.job.trained import Trained, trained_parts
from backend.job.unestimated import UnestimatedModel
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

ROOT = Path(__file__).parents[2]
KEYS = list(models())
LARGEST_FOLDER = 256 << 10


@cache
def table(key: str) -> ModelLayers:
    return model_layers(parse_model(models()[key].hf_config))


def test_every_preset_has_a_profile_and_no_other_file_ships() -> None:
    shipped = {path.name for path in (data_folder("presets") / "profiles").iterdir()}
    assert shipped == {profile_path(key).name for key in KEYS}
    assert sum(profile_path(key).stat().st_size for key in KEYS) < LARGEST_FOLDER


def test_every_profile_is_of_the_presets_present_config() -> None:
    digests = {key: config_digest(model.hf_config) for key, model in models().items()}
    assert {key: preset_profile(key)["digest"] for key in KEYS} == digests
    assert {preset_profile(key)["profile"] for key in KEYS} == {FORMAT}
    assert {*map(frozenset, (preset_profile(key)["versions"] for key in KEYS))} == {
        frozenset({"torch", "transformers"})
    }


def test_a_profile_is_packed_into_the_same_bytes() -> None:
    profile = {**preset_profile("qwen3-8b"), "cpu_seconds": 3.5, "measured": {"flops": "matrix operations"}}
    assert packed(profile) == packed(preset_profile("qwen3-8b"))


@pytest.mark.parametrize("key", KEYS)
def test_parameters_by_part_are_those_of_the_table(key: str) -> None:
    counted, layers = preset_profile(key)["parameters"], table(key)
    assert counted["total"] + counted["router_biases"] == model_parameters(layers) == models()[key].parameters
    groups = counted["groups"]
    if layers.vision is None or preset_profile(key)["groups_from"] is None:
        # LLaMA-Factory 0.9.5 does not know the parts of the types that only a later transformers has.
        assert groups == {"language": counted["total"]}
        return
    tower, merger, deep_stack = vision_parameters(layers.vision)
    model_type = models()[key].hf_config["model_type"]
    parts = dict(Counter(groups) + Counter({UNNAMED[model_type]: groups["other"]} if "other" in groups else {}))
    assert parts.get("vision", 0) + parts.get("audio", 0) == tower + deep_stack * (model_type not in UNNAMED)
    assert parts.get("projector", 0) == merger + deep_stack * (model_type in UNNAMED)
    assert parts["language"] + counted["router_biases"] == model_parameters(layers) - tower - deep_stack - merger


UNNAMED = {"gemma3n": "projector", "qwen3_omni_moe": "language"}
"""Model type -> the part whose modules LLaMA-Factory 0.9.5 does not find by its keys (model/model_utils/visual.py). Its
key of Qwen3-Omni's projector is in the names of the deep-stack mergers, too."""


def decoder(key: str) -> list[dict[str, Any]]:
    """Return the profile of every layer of the language model, in order."""
    profile = preset_profile(key)
    kinds, depth = profile["kinds"], len(table(key).order)
    [order] = [tower["order"] for tower in profile["towers"] if tower["layers"] == depth]
    return [kinds[index] for index, count in order for _ in range(count)]


def table_layers(key: str) -> list[LayerKind]:
    return [table(key).kinds[index] for index in table(key).order]


def test_every_layer_has_the_parameters_of_the_table() -> None:
    counted = {key: [layer["parameters"] for layer in decoder(key)] for key in KEYS}
    assert counted == {key: [layer_counts(kind).total for kind in table_layers(key)] for key in KEYS}


def measured() -> Iterator[tuple[str, dict[str, Any], LayerKind]]:
    """Yield each preset's kinds of layers that ran and have full attention, with the table's kinds. On a CPU the others
    run as loops of torch, and on nodes as kernels."""
    # Gemma 3n has copies of the hidden state, and the program cannot run its layers one by one.
    for key in (key for key in KEYS if not preset_profile(key)["problems"]):
        pairs = {id(layer): (layer, kind) for layer, kind in zip(decoder(key), table_layers(key), strict=True)}
        for layer, kind in pairs.values():
            if layer["figures"] and operators_of(kind, Attention):
                yield key, layer, kind


def test_every_layer_has_the_operations_of_the_table() -> None:
    for key, layer, kind in measured():
        counted, flops = layer["figures"]["sdpa"]["forward_flops"], layer_flops(kind)
        # Every token reads every other in the count, also where a mask hides half of them.
        assert (counted["token"], counted["token_pair"]) == (flops.weights, 2 * flops.attention), key


SAVED_ERRORS = {"gemma4_unified": 0.025, "qwen3_next": 0.015, "qwen3_5_moe": 0.015}
"""Model type -> largest error of the bytes that a layer saves; 0.006 for any other."""


def test_every_layer_saves_the_bytes_of_the_table() -> None:
    wrong = {}
    for key, layer, kind in measured():
        # transformers pads the values of latent attention for FlashAttention 2.
        is_latent = any(core.latent for core in operators_of(kind, Attention))
        saved = layer["figures"]["sdpa" if is_latent else "flash_attention_2"]["saved_bytes"]["token"]
        # A dropout's mask has one byte on a GPU, and on a CPU two, like its input (torch's aten Dropout.cpp).
        masks = sum(each.width for each in operators_of(kind, Keep) if each.bytes == 1)
        error = (eager_bytes(kind, EagerForm()) + masks) / saved - 1
        if abs(error) > SAVED_ERRORS.get(models()[key].hf_config["model_type"], 0.006):
            wrong[key] = error
    assert wrong == {}


def test_the_profile_gives_the_estimate_of_a_type_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_config: object) -> None:
        raise ProblemsError([Problem(code="unsupported_model_type", field="model.hf_config")])

    monkeypatch.setattr(unestimated, "parse_model", refuse)
    presets._preset_shape.cache_clear()
    try:
        shapes = {key: known_model(Model(preset=key)) for key in ("qwen3-8b", "qwen3-30b-a3b", "qwen2.5-omni-7b")}
    finally:
        presets._preset_shape.cache_clear()
    for key in ("qwen3-8b", "qwen3-30b-a3b"):
        shape = shapes[key]
        assert isinstance(shape, ModelShape)
        assert model_parameters(model_layers(shape)) == models()[key].parameters
    omni = shapes["qwen2.5-omni-7b"]
    assert isinstance(omni, UnestimatedModel)
    assert omni.reason.values["reason_code"] == "profile_has_towers"


@pytest.mark.parametrize(
    ("preset", "targets", "unknown"),
    [
        ("qwen3-8b", "q_proj,v_proj", None),
        ("qwen3-8b", "all", None),
        ("qwen3-8b", "self_attn.q_proj,mlp.down_proj", None),
        ("qwen3-8b", "lm_head", None),
        ("qwen3-8b", "layers.0.self_attn.q_proj", None),
        ("qwen3-8b", "q_proj,c_attn,proj", "c_attn, proj"),
        ("qwen3-vl-8b", "linear_fc1,merger.linear_fc2,qkv", None),
        ("qwen3-vl-8b", "W_pack", "W_pack"),
    ],
)
def test_a_name_that_no_module_of_a_preset_has_is_a_warning(preset: str, targets: str, unknown: str | None) -> None:
    found = lora_problems({"preset": preset}, targets)
    assert [(each.severity, each.values["names"]) for each in found] == ([("warning", unknown)] if unknown else [])


def test_names_are_not_judged_without_a_preset_or_for_megatrons_modules() -> None:
    assert lora_problems({"hf_config": dict(models()["qwen3-8b"].hf_config)}, "c_attn") == []
    assert lora_problems({"preset": "qwen3-8b"}, "linear_qkv", "swift-megatron") == []


def lora_problems(model: dict[str, Any], targets: str, engine: str = "llamafactory-zero3") -> list[Problem]:
    job, problems = parse_job(
        {"cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}, "model": model, "engine": engine,
         "training": {"method": "lora", "lora": {"targets": targets}}}
    )  # fmt: skip
    assert job is not None, problems
    return [problem for problem in check(job) if problem.code == "lora_targets_unknown"]


def test_the_switch_of_the_language_model_leaves_what_the_keys_of_llamafactory_do_not_name() -> None:
    """The profile counts what each switch freezes. trained_parts says the same of Qwen3-Omni."""
    counted = preset_profile("qwen3-omni-30b-a3b")["parameters"]
    assert counted["frozen_by"]["language"] == counted["groups"]["language"] < 0.02 * counted["groups"]["other"]
    job, _ = parse_job(
        {"cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8}, "model": {"preset": "qwen3-omni-30b-a3b"},
         "engine": "llamafactory-zero3", "training": {"freeze": {"language_model": True, "projector": True}}}
    )  # fmt: skip
    assert job is not None
    shape = known_model(job.model)
    assert isinstance(shape, ModelShape)
    assert trained_parts(job, shape) == Trained(merger=False, deep_stack=False)
    assert trained_parts(replace(job, engine="swift-zero3"), shape).language is False


@pytest.mark.engines
@needs_node_environment
def test_the_shipped_profiles_are_made_again_byte_by_byte() -> None:
    keys = ("qwen3-0.6b", "qwen2.5-vl-3b", "olmo-2-7b")
    program = (
        "import gzip, sys; from tools.write_profiles import made_profile; "
        "[print(gzip.decompress(made_profile(key)).decode()) for key in sys.argv[1:]]"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", program, *keys]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [gzip.decompress(profile_path(key).read_bytes()).decode() for key in keys]
