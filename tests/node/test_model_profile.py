"""The profile of a model equals the real model: its parameters, and what its layers save on CPU with real weights."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from backend.cluster.node_programs import MODEL_PROFILE, node_program
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import layer_counts
from backend.job.model import operators, parse_model
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, needs_node_environment]

DENSE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 1024,
}  # fmt: skip
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GATED = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 32, "num_hidden_layers": 8, "full_attention_interval": 4,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
VISION = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PATCHES = {
    "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 64,
    "fullatt_block_indexes": [3], "window_size": 112, "patch_size": 14,
}  # fmt: skip
MODELS = {
    "llama": DENSE,
    "qwen3": {**DENSE, "tie_word_embeddings": True},
    "qwen3_moe": {**DENSE, **SPARSE},
    "gemma3": {
        "text_config": {**DENSE, "sliding_window": 32, "num_hidden_layers": 7, "model_type": "gemma3_text"},
        "vision_config": {**VISION, "image_size": 56, "patch_size": 14, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "qwen3_next": {**DENSE, **SPARSE, **GATED},
    "deepseek_v3": {**DENSE, **LATENT},
    "qwen2_5_vl": {
        "text_config": {
            **DENSE, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        },
        "vision_config": PATCHES,
    },
    "phi3": {**DENSE, "pad_token_id": 0},
    "mixtral": {**DENSE, "num_local_experts": 4},
}  # fmt: skip

BAD = {
    "config_invalid_json": '{"model_type": "llama", "hid',
    "config_not_an_object": "[]",
    "model_type_missing": '{"hidden_size": 64}',
    "model_type_unknown": '{"model_type": "never_heard_of"}',
    "remote_code": '{"model_type": "never_heard_of", "auto_map": {"AutoConfig": "a.B"}}',
    "no_model_class": '{"model_type": "clip_vision_model"}',
    "config_refused": '{"model_type": "llama", "num_attention_heads": "many"}',
}
"""Code of the problem -> config.json."""
MISSING = {"folder_missing": "/nowhere/at/all", "not_in_cache": "nobody/never-loaded"}
"""Code of the problem -> place of the model."""


def ask(arguments: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [str(NODE_PYTHON), "-W", "ignore", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    root = tmp_path_factory.mktemp("models")
    contents = {name: json.dumps({"model_type": name, **config}) for name, config in MODELS.items()} | BAD
    for name, content in contents.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(content)
    bad = {name: str(root / name) for name in BAD} | MISSING
    values = {"models": {name: str(root / name) for name in MODELS}, "bad": bad}
    done = ask(["-m", "tests.node.real_layers"], json.dumps(values))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def profiles(answers: dict) -> dict[str, dict]:
    return answers["profiles"]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_saved_bytes_are_those_of_the_real_model(answers: dict, name: str) -> None:
    profile, (parameters, saved) = answers["profiles"][name], answers["real"][name]
    assert profile["problems"] == []
    assert profile["parameters"]["total"] == parameters
    inside = sum(kind["count"] * kind["parameters"] for kind in profile["kinds"])
    assert inside + sum(module["parameters"] for module in profile["outside"]) == parameters
    assert not any(op["type"] == "Parameters" for kind in profile["kinds"] for op in kind["operators"])
    figures = [kind["figures"].get("eager", kind["figures"]["sdpa"])["saved_bytes"] for kind in profile["kinds"]]
    # Text does not reach the tower of images.
    predicted = [None if real is None else value(figure, 2, 128) for figure, real in zip(figures, saved, strict=True)]
    assert predicted == saved


def value(figure: dict, batch: int, length: int) -> float:
    terms = {"constant": 1, "sequence": batch, "token": batch * length, "token_pair": batch * length**2,
             "length": length, "length_pair": length**2}  # fmt: skip
    return sum(figure.get(term, 0) * factor for term, factor in terms.items())


def test_operators_have_the_fields_of_the_estimate(profiles: dict) -> None:
    for profile in profiles.values():
        assert all(estimated(kind).operators for kind in profile["kinds"])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {"gemma3", "qwen2_5_vl"}])
def test_the_estimate_has_the_same_kinds_from_the_configuration_alone(profiles: dict, name: str) -> None:
    model = model_layers(parse_model({"model_type": name, **MODELS[name]}))
    kinds = [estimated(kind) for kind in profiles[name]["kinds"]]
    assert [layer_counts(kind).total for kind in kinds] == [layer_counts(kind).total for kind in model.kinds]
    assert [layer_flops(kind).attention for kind in kinds] == [layer_flops(kind).attention for kind in model.kinds]
    assert [layer_flops(kind).weights for kind in kinds] == [layer_flops(kind).weights for kind in model.kinds]
    runs = profiles[name]["towers"][0]["order"]
    assert [kind for kind, count in runs for _ in range(count)] == list(model.order)


def test_measured_operations_are_those_of_the_operators(profiles: dict) -> None:
    for profile in profiles.values():
        for kind in profile["kinds"]:
            flops, measured = layer_flops(estimated(kind)), kind["figures"]["sdpa"]["forward_flops"]
            core = next((operator for operator in kind["operators"] if operator["type"] == "Attention"), None)
            if core is not None and not (core["window"] and not core["causal"]):
                # Every token reads every other in the count, also where a mask hides half of them.
                pairs = flops.attention * (2 if core["causal"] else 1)
                assert (measured["token"], measured["token_pair"]) == (flops.weights, pairs), kind["class"]


def estimated(kind: dict) -> LayerKind:
    typed = [
        getattr(operators, operator["type"])(**{key: field for key, field in operator.items() if key != "type"})
        for operator in kind["operators"]
    ]
    return LayerKind(name=kind["class"], hidden=kind["hidden"], operators=tuple(typed))


def test_layers_of_different_kinds_keep_their_order(profiles: dict) -> None:
    orders = {name: [tower["order"] for tower in result["towers"]] for name, result in profiles.items()}
    assert orders["deepseek_v3"] == [[[0, 1], [1, 2]]]
    assert orders["qwen3_next"] == [[[0, 3], [1, 1], [0, 3], [1, 1]]]
    assert orders["gemma3"] == [[[0, 2]], [[1, 5], [2, 1], [1, 1]]]
    assert orders["qwen2_5_vl"] == [[[0, 3], [1, 1]], [[2, 3]]]


def test_groups_are_those_that_llama_factory_freezes(profiles: dict) -> None:
    groups = profiles["qwen2_5_vl"]["parameters"]["groups"]
    assert set(groups) == {"vision", "projector", "language"}
    assert groups["vision"] == profiles["qwen2_5_vl"]["parameters"]["frozen_by"]["vision"]


@pytest.mark.parametrize("code", [*BAD, *MISSING])
def test_a_model_that_cannot_be_read_is_a_problem_with_a_code(answers: dict, code: str) -> None:
    assert answers["problems"][code] == code


@pytest.mark.parametrize(
    ("config", "exit_code", "key"), [(json.dumps({"model_type": "llama", **DENSE}), 0, "kinds"), ("{", 1, "problem")]
)
def test_the_program_as_sent_to_a_node_prints_one_object(tmp_path: Path, config: str, exit_code: int, key: str) -> None:
    (tmp_path / MODEL_PROFILE).write_bytes(node_program(MODEL_PROFILE))
    (tmp_path / "config.json").write_text(config)
    done = ask([str(tmp_path / MODEL_PROFILE), str(tmp_path)])
    assert done.returncode == exit_code, done.stderr[-2000:]
    assert key in json.loads(done.stdout)
