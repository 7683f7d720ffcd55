"""The causes, by the name of their folder."""

from collections.abc import Mapping

from tools.provoke_failures.gang import Cause

CAUSES: Mapping[str, Cause] = {
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
    "model-path-missing-node1": Cause(
        category="model_path",
        how="The model's folder does not exist on node 1.",
        node=1,
        rank=1,
        node_keys={1: {"model_name_or_path": "/data/models/Qwen3-8B"}},
    ),
}
