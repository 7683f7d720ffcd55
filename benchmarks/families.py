"""Every model type that LLaMA-Factory's loader takes: whether config.json alone gives its parameters, and which.

    .venv-node/bin/python -m benchmarks.families [--json] [--profiles]
    .venv-node/bin/newer-python -m benchmarks.families --newer

Needs the node environment (transformers, LLaMA-Factory). Models have the default configuration of transformers and are
built on the meta device, so nothing is allocated. Types that LLaMA-Factory names in its code and whose code is not in
transformers are listed too. `--profiles` makes a model profile of each type that config.json does not describe.
`--newer` prints the types that only a later transformers has, with the configuration of each exact one.
"""

import argparse
import ast
import importlib.util
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transformers
from transformers import AutoModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import is_timm_available

from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import mobilenet, parse_model
from backend.job.model.model_profile import profiled_shape
from backend.job.problems import ProblemsError
from backend.node.model_profile.main import profile
from backend.node.model_profile.problem import ProfileError
from benchmarks.small_models import NEWER_MODELS, SEEING, SMALL_MODELS
from tools.write_models import read_data

CLASSES: Mapping[str, str] = {
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForTextToWaveform": "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
}
"""The class that the loader chooses, the first that knows a type (LLaMA-Factory 0.9.5 model/loader.py) -> the table of
its types in transformers."""

_QWEN4_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}
_ROPE_OF_COMPASS = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
COMPLETED: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "cohere_compass": {"text_config": {"model_type": "cohere_compass_text", "rope_parameters": _ROPE_OF_COMPASS}},
    "cohere_compass_text": {"rope_parameters": _ROPE_OF_COMPASS},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31}},
    "diffusion_gemma": {
        "text_config": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
        "vision_config": {},
    },
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "gemma4_unified": {"vision_config": {}, "audio_config": {}},
    "granite4_vision": {
        "downsample_rate": "4/8",
        "deepstack_layer_map": [[-19, 9], [-13, 6], [-7, 3], [-1, 0]],
        "text_config": {"model_type": "granite4_vision_text"},
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 16, "moe_topk": 2},
    "idefics3": {"pad_token_id": 0, "text_config": {"model_type": "llama", "pad_token_id": 0}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "qwen4_exp": {"text_config": {"model_type": "qwen4_exp_text", **_QWEN4_INDEXER}},
    "qwen4_exp_text": _QWEN4_INDEXER,
    "smolvlm": {"pad_token_id": 0, "text_config": {"model_type": "llama", "pad_token_id": 0}},
}
"""Keys without which transformers cannot build a type's default configuration."""
THINKERS = ("qwen2_5_omni", "qwen3_omni_moe")
"""Types of which the engine trains only the part `thinker` (model/loader.py)."""


class Outcome(NamedTuple):
    """What became of one model type."""

    loader: str
    """The class of transformers that loads it; `remote code` if the model brings its own."""
    status: str
    """exact, wrong, refused (config.json is not enough), not_built (transformers does not build the default)."""
    ours: int = 0
    theirs: int = 0
    reason: str = ""


_UNKNOWN = {"loader": "remote code"}


def newer() -> dict[str, Any]:
    """Return the version of `transformers`, and for `types` that families.json lacks outcome and configuration."""
    known = read_data()["types"]
    types = {}
    for name, loader in model_types().items():
        if known.get(name, _UNKNOWN)["loader"] == "remote code" and loader != "remote code":
            types[name] = outcome(name, loader)._asdict()
            if types[name]["status"] == "exact":
                types[name]["config"] = CONFIG_MAPPING[name](**COMPLETED.get(name, {})).to_dict()
    return {"transformers": transformers.__version__, "types": types}


def model_types() -> dict[str, str]:
    """Return every type in the order of the loader, with its class."""
    loaders: dict[str, str] = {}
    for loader, table in CLASSES.items():
        for name in getattr(modeling_auto, table):
            loaders.setdefault(name, loader)
    for name in sorted(named_by_llamafactory() - {*loaders, *CONFIG_MAPPING}):
        loaders[name] = "remote code"
    return loaders


def named_by_llamafactory() -> set[str]:
    """Return the model types that LLaMA-Factory's code compares with or registers, read from its source files."""
    spec = importlib.util.find_spec("llamafactory")
    folder = Path((spec.submodule_search_locations or [""])[0] if spec else "") / "model"
    names: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names |= set(_types_in(node))
    return names


def _types_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts that code compares with a model_type, or registers as one."""
    if isinstance(node, ast.keyword) and node.arg == "model_type" and isinstance(node.value, ast.Constant):
        yield str(node.value.value)
    if isinstance(node, ast.Compare) and "model_type" in ast.unparse(node.left):
        for other in ast.walk(node.comparators[0]):
            if isinstance(other, ast.Constant) and isinstance(other.value, str):
                yield other.value


def outcome(name: str, loader: str) -> Outcome:
    """Return what becomes of the default configuration of one type."""
    if loader == "remote code":
        return Outcome(loader, "refused", reason="remote_code")
    try:
        config = CONFIG_MAPPING[name](**COMPLETED.get(name, {}))
    except Exception as error:
        return Outcome(loader, "not_built", reason=_reason(error))
    try:
        ours = model_parameters(model_layers(parse_model({**config.to_dict(), "model_type": name})))
    except ProblemsError as error:
        return Outcome(loader, "refused", reason=error.problems[0].code)
    try:
        theirs = built_parameters(config, loader)
    except Exception as error:
        return Outcome(loader, "not_built", ours=ours, reason=_reason(error))
    small = {**SMALL_MODELS, **NEWER_MODELS, **SEEING}.get(name)
    is_exact = ours == theirs and (small is None or _is_exact(small, loader))
    return Outcome(loader, "exact" if is_exact else "wrong", ours, theirs)


def _is_exact(keys: Mapping[str, Any], loader: str) -> bool:
    """Return whether a small model, with layers of several kinds, has as many parameters as transformers builds."""
    config = CONFIG_MAPPING[keys["model_type"]].from_dict(dict(keys))
    return model_parameters(model_layers(parse_model(keys))) == built_parameters(config, loader)


def built_parameters(config: Any, loader: str) -> int:
    """Return the parameters of the model that the engine trains. Router biases count as in checkpoints."""
    if config.model_type in THINKERS:
        config, loader = config.thinker_config, "AutoModelForImageTextToText"
    if config.model_type == "gemma3n" and not is_timm_available():
        return _without_timm(config, loader)
    with torch.device("meta"):
        model = getattr(transformers, loader).from_config(config)
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(tensor.numel() for tensor in (*model.parameters(), *biases))


def _without_timm(config: Any, loader: str) -> int:
    """Return the parameters of Gemma 3n. An empty module stands for its vision tower, whose weights were counted in
    timm, which the node environment does not have."""
    build = AutoModel.from_config

    def without_tower(config: Any, **options: Any) -> Any:
        return torch.nn.Identity() if config.model_type == "gemma3n_vision" else build(config, **options)

    with torch.device("meta"), patch.object(AutoModel, "from_config", without_tower):
        model = getattr(transformers, loader).from_config(config)
    return mobilenet.WEIGHTS + sum(tensor.numel() for tensor in model.parameters())


def profiled(name: str) -> str:
    """Return `exact` if a model profile gives an estimate with the parameters of transformers, else why not."""
    config = CONFIG_MAPPING[name](**COMPLETED.get(name, {}))
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        try:
            made = profile(folder)
            keys = json.loads((Path(folder) / "config.json").read_text())
            ours = model_parameters(model_layers(profiled_shape(json.loads(json.dumps(made)), keys)))
        except ProfileError as error:
            return str(error.problem["code"])
        except ProblemsError as error:
            return error.problems[0].code
        except Exception as error:
            return _reason(error)
    return "exact" if ours == made["parameters"]["total"] else "wrong"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


def main() -> None:
    """Print one line for each type, or JSON {type: outcome}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profiles", action="store_true")
    parser.add_argument("--newer", action="store_true")
    chosen = parser.parse_args()
    if chosen.newer:
        print(json.dumps(newer()))
        return
    outcomes = {name: outcome(name, loader) for name, loader in model_types().items()}
    if chosen.profiles:
        unknown = [name for name, each in outcomes.items() if each.reason == "unsupported_model_type"]
        print(json.dumps({name: profiled(name) for name in unknown}))
        return
    if chosen.json:
        print(json.dumps({name: each._asdict() for name, each in outcomes.items()}))
        return
    for name, each in sorted(outcomes.items()):
        print(f"{name:40} {each.loader:28} {each.status:10} {each.ours:15,} {each.reason}")
    print(dict(Counter(each.status for each in outcomes.values())))


if __name__ == "__main__":
    main()
