"""Answers of models to rows of evaluation data, and LLaMA-Factory's metrics of them. The supervisor starts it.

    predict.py FOLDER

FOLDER/evaluate.json has `rows` (how many), `models` (a list of `name`, `args` and `devices`) and `config`, the
arguments of LLaMA-Factory that the models share. The models run in turns, so that each has the whole GPU.
LLaMA-Factory's own prediction (0.9.5 src/llamafactory/train/sft/workflow.py, do_predict) reads the data, generates and
counts BLEU and ROUGE.
FOLDER/predictions.json appears when all models have answered.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

from backend.node.model_process import start_model

METRIC_PACKAGES = ("jieba", "nltk", "rouge_chinese")
"""What LLaMA-Factory needs to count the metrics (src/llamafactory/train/sft/metric.py)."""
LONGEST = 4000
"""Characters of a text that are kept."""


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    with open(f"{folder}/evaluate.json", encoding="utf-8") as file:
        request = json.load(file)
    if len(sys.argv) > 2:
        predict(folder, request, request["models"][int(sys.argv[2])])
        return
    for rank, model in enumerate(request["models"]):
        print("megaboard: predicting with", model["name"], flush=True)
        status = start_model(folder, rank, model["devices"]).wait()
        if status:
            raise SystemExit(status)
    write(folder, [model["name"] for model in request["models"]])


def missing_packages() -> list[str]:
    return [name for name in METRIC_PACKAGES if importlib.util.find_spec(name) is None]


def predict(folder: str, request: dict[str, Any], model: dict[str, Any]) -> None:
    import llamafactory.data.loader as loader
    import llamafactory.hparams.parser as parser
    import llamafactory.train.sft.workflow as workflow
    from llamafactory.train.tuner import run_exp

    preprocess = loader._get_preprocessed_dataset
    rows = request["rows"]

    def first_rows(dataset: Any, *args: Any, is_eval: bool = False, **kwargs: Any) -> Any:
        """Encode the first rows of the data for evaluation only: the other rows are not read."""
        if dataset is None or not is_eval:
            return dataset
        return preprocess(dataset.select(range(min(rows, len(dataset)))), *args, is_eval=is_eval, **kwargs)

    loader._get_preprocessed_dataset = first_rows
    if missing_packages():
        check_version, similarity = parser.check_version, None
        parser.check_version = lambda need, **options: (
            None if need in METRIC_PACKAGES else check_version(need, **options)
        )
        workflow.ComputeSimilarity = lambda tokenizer: similarity
    run_exp({**request["config"], **model["args"], "output_dir": f"{folder}/{model['name']}"})


def write(folder: str, names: list[str]) -> None:
    """Join the answers of the models, row by row."""
    answers = {name: read_rows(f"{folder}/{name}/generated_predictions.jsonl") for name in names}
    first = answers[names[0]]
    rows = [
        {"prompt": row["prompt"][:LONGEST], "reference": row["label"][:LONGEST],
         "answers": {name: answers[name][index]["predict"][:LONGEST] for name in names}}
        for index, row in enumerate(first)
    ]  # fmt: skip
    result = {"rows": rows, "metrics": {name: read_metrics(f"{folder}/{name}") for name in names},
              "missing": missing_packages()}  # fmt: skip
    with open(f"{folder}/predictions.part", "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False)
    os.replace(f"{folder}/predictions.part", f"{folder}/predictions.json")
    print("megaboard: predicted", len(rows), "rows", flush=True)


def read_rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_metrics(folder: str) -> dict[str, float]:
    """Return the metrics without the prefix that all have."""
    with open(f"{folder}/predict_results.json", encoding="utf-8") as file:
        metrics = json.load(file)
    return {
        name.replace("predict_", "", 1): value for name, value in metrics.items() if isinstance(value, (int, float))
    }


if __name__ == "__main__":
    main()
