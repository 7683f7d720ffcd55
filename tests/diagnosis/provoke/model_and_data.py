"""Failures of models, data sets, templates, tokenizers and hubs."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.demo import tiny_model
from tests.diagnosis.provoke.gang import Cause, Gang, run_node_python
from tools import tiny_data
from tools.hub import hub

Change = Callable[[Path], None]


def with_model(change: Change, *nodes: int) -> Callable[[Gang], None]:
    """Return a preparation: the nodes (all by default) get a changed copy of the model."""
    return lambda gang: _copy(gang, gang.model(gang.cause.model), "model_name_or_path", change, nodes)


def with_data(change: Change, *nodes: int) -> Callable[[Gang], None]:
    """Return a preparation: the nodes (all by default) get a changed copy of the data folder."""
    return lambda gang: _copy(gang, gang.work / tiny_model.DATA_FOLDER, "dataset_dir", change, nodes)


def _copy(gang: Gang, source: Path, key: str, change: Change, nodes: tuple[int, ...]) -> None:
    folder = gang.path("changed", source.name)
    shutil.copytree(source, folder)
    change(folder)
    for node in nodes or range(gang.cause.nodes):
        gang.configs[node][key] = str(folder)


def edit(path: Path, **values: Any) -> None:
    """Change values of a JSON object in a file. None removes a key."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}, indent=1))


def _cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200_000])


def _lfs_pointer(folder: Path) -> None:
    size = (folder / "model.safetensors").stat().st_size
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize {size}\n"
    (folder / "model.safetensors").write_text(pointer)


def _more_tokens(folder: Path) -> None:
    code = "import sys, transformers as t; k = t.AutoTokenizer.from_pretrained(sys.argv[1]); "
    code += "k.add_tokens([f'<role_{i}>' for i in range(120)] + ['What is']); k.save_pretrained(sys.argv[1])"
    run_node_python("-c", code, folder)


def _broken_json(folder: Path) -> None:
    path = folder / f"{tiny_model.DATASET}.json"
    path.write_text(path.read_text()[:-400])


def _mixed_types(folder: Path) -> None:
    path = folder / f"{tiny_model.DATASET}.json"
    rows = json.loads(path.read_text())
    rows[200]["output"] = [1, 2]
    path.write_text(json.dumps(rows))


def _wrong_columns(entry: Mapping[str, Any]) -> Change:
    def change(folder: Path) -> None:
        file = f"{tiny_model.DATASET}.json"
        edit(folder / "dataset_info.json", **{tiny_model.DATASET: {"file_name": file, **entry}})

    return change


def _only_questions(folder: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": row["instruction"]}]} for row in tiny_model.make_rows(8)]
    (folder / f"{tiny_data.PICTURES}.json").write_text(json.dumps([{**row, "images": []} for row in rows]))


def _at_hub(gang: Gang) -> None:
    address, _ = gang.servers.enter_context(hub({}))
    gang.variables = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(gang.path("hub"))}


MODEL_AND_DATA: Mapping[str, Cause] = {
    "template-missing": Cause(
        category="template_missing",
        how="The template of all nodes is llama3_2, a name that LLaMA-Factory does not have.",
        keys={"template": "llama3_2"},
    ),
    "dataset-not-defined": Cause(
        category="dataset_not_defined",
        how="The data set is not in dataset_info.json.",
        keys={"dataset": "identity"},
    ),
    "dataset-info-missing": Cause(
        category="dataset_info_missing",
        how="The data folder is the relative path `data`, which does not exist in the folder of the ranks.",
        keys={"dataset_dir": "data"},
    ),
    "dataset-file-missing-node1": Cause(
        category="file_missing",
        how="The rows of the data set are not on node 1.",
        node=1,
        rank=1,
        prepare=with_data(lambda folder: (folder / f"{tiny_model.DATASET}.json").unlink(), 1),
    ),
    "dataset-columns-alpaca": Cause(
        category="dataset_columns",
        how="dataset_info.json names a column `question` that the rows do not have.",
        prepare=with_data(_wrong_columns({"columns": {"prompt": "question", "response": "output"}})),
    ),
    "dataset-columns-sharegpt": Cause(
        category="dataset_columns",
        how="dataset_info.json says that alpaca rows are sharegpt rows.",
        prepare=with_data(_wrong_columns({"formatting": "sharegpt"})),
    ),
    "dataset-json-cut": Cause(
        category="dataset_json",
        how="The JSON file of the rows ends in the middle.",
        prepare=with_data(_broken_json),
    ),
    "dataset-json-types": Cause(
        category="dataset_json",
        how="One of 512 rows has a list where the others have a text.",
        prepare=with_data(_mixed_types),
    ),
    "dataset-empty": Cause(
        category="dataset_empty",
        how="Every row has a question without an answer, so that none is left.",
        values={"training.dataset": tiny_data.PICTURES},
        prepare=with_data(_only_questions),
    ),
    "model-path-missing-node1": Cause(
        category="model_path",
        how="The model's folder does not exist on node 1.",
        node=1,
        rank=1,
        node_keys={1: {"model_name_or_path": "/data/models/Qwen3-8B"}},
    ),
    "model-path-file": Cause(
        category="model_path",
        how="The model's path is that of the weights file instead of the folder.",
        keys={"model_name_or_path": "$WORK/model/model.safetensors"},
    ),
    "model-config-missing": Cause(
        category="model_incomplete",
        how="config.json is not in the model's folder.",
        prepare=with_model(lambda folder: (folder / "config.json").unlink()),
    ),
    "model-weights-missing-node1": Cause(
        category="model_incomplete",
        how="The download of the model on node 1 stopped before the weights.",
        node=1,
        rank=1,
        prepare=with_model(lambda folder: (folder / "model.safetensors").unlink(), 1),
    ),
    "safetensors-lfs-pointer": Cause(
        category="safetensors_broken",
        how="model.safetensors is a git-lfs pointer on all nodes.",
        prepare=with_model(_lfs_pointer),
    ),
    "safetensors-cut-node1": Cause(
        category="safetensors_broken",
        how="model.safetensors was cut on node 1, as by an interrupted copy.",
        node=1,
        rank=1,
        prepare=with_model(_cut_weights, 1),
    ),
    "transformers-too-old": Cause(
        category="transformers_too_old",
        how="config.json names the model type qwen5, which this transformers does not know.",
        prepare=with_model(lambda folder: edit(folder / "config.json", model_type="qwen5", architectures=["Qwen5"])),
    ),
    "model-size-mismatch": Cause(
        category=None,
        how="config.json has another intermediate size than the weights.",
        prepare=with_model(lambda folder: edit(folder / "config.json", intermediate_size=160)),
    ),
    "generation-config": Cause(
        category="generation_config",
        how="generation_config.json has a length penalty without beams. The checkpoint cannot be written.",
        rank=0,
        node=0,
        prepare=with_model(lambda folder: edit(folder / "generation_config.json", num_beams=1, length_penalty=0.8)),
    ),
    "hub-offline": Cause(
        category="hub_unreachable",
        how="The model is a name of the hub, nothing is in the cache, and HF_HUB_OFFLINE is 1.",
        keys={"model_name_or_path": "Qwen/Qwen3-0.6B"},
        environment={"HF_HOME": "$WORK/empty-hub"},
    ),
    "hub-unreachable": Cause(
        category="hub_unreachable",
        how="The model is a name of the hub, and nothing listens at the hub's address.",
        keys={"model_name_or_path": "Qwen/Qwen3-0.6B"},
        environment={"HF_HOME": "$WORK/empty-hub", "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "https://127.0.0.1:9"},
    ),
    "hub-gated": Cause(
        category="hub_gated",
        how="A hub on this machine answers that the model's licence was not accepted.",
        keys={"model_name_or_path": "meta/gated"},
        prepare=_at_hub,
    ),
    "hub-rate-limit": Cause(
        category="hub_rate_limit",
        how="A hub on this machine answers that there were too many requests.",
        keys={"model_name_or_path": "meta/limited"},
        prepare=_at_hub,
    ),
    "lora-targets": Cause(
        category="lora_targets",
        how="LoRA's targets are names of ChatGLM's modules.",
        values={"training.method": "lora"},
        keys={"lora_target": "query_key_value,dense_h_to_4h"},
    ),
    "index-out-of-range": Cause(
        category="index_out_of_range",
        how="The tokenizer got tokens beyond the model's embedding.",
        prepare=with_model(_more_tokens),
    ),
    "image-tokens": Cause(
        category="image_tokens",
        how="cutoff_len cuts a picture's tokens off.",
        model="vision",
        keys={"cutoff_len": 8},
        paths=("packages/torchvision",),
        packages=("torch", "transformers", "llamafactory", "pillow"),
    ),
    "unknown-key": Cause(
        category=None,
        how="config.yaml has a key that LLaMA-Factory does not know.",
        keys={"lora_rnak": 8},
    ),
}
