"""Tokenising of the data sets of FOLDER/config.yaml by LLaMA-Factory, without a GPU. prepare_data.py starts it.

    tokenise.py FOLDER TARGET '{"shuffle": SEED|null, "megatron": BOOL}'

LLaMA-Factory loads TARGET as `tokenized_path`. The rows keep their order, or the seed shuffles them: mcore_adapter
reads them in order.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from backend.node.training.engine_data import read_engine

LARGE = 100_000
"""Number of rows from which several processes save faster than one."""


def main() -> None:
    folder, target, text = sys.argv[1:]
    options = json.loads(text)
    import yaml

    with open(os.path.join(folder, "config.yaml"), encoding="utf-8") as file:
        config = yaml.safe_load(file)
    tables = tokenise(config, options["megatron"])
    if options["shuffle"] is not None:
        tables["train"] = tables["train"].shuffle(seed=options["shuffle"])
    # Shuffled rows are gathered one by one, which is slow.
    is_large = len(tables["train"]) >= LARGE
    tables.save_to_disk(target, num_proc=config.get("preprocessing_num_workers") if is_large else None)
    record = {**options, "rows": {name: len(table) for name, table in tables.items()}, "config": config}
    with open(os.path.join(target, "megaboard.json"), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, ensure_ascii=False)


def tokenise(config: dict[str, Any], megatron: bool) -> Any:
    """Return a DatasetDict: `train`, and the evaluation data where the configuration has some."""
    from datasets import DatasetDict
    from llamafactory.data import get_dataset

    engine = read_engine(config, megatron)
    arguments = (engine.template, engine.model, engine.data, engine.training)
    datasets = get_dataset(*arguments, stage=engine.stage, **engine.tokenizer)
    evaluation = datasets.get("eval_dataset") or {}
    if not isinstance(evaluation, dict):
        return DatasetDict({"train": datasets["train_dataset"], "validation": evaluation})
    named = {f"validation_{name}": table for name, table in evaluation.items()}
    return DatasetDict({"train": datasets["train_dataset"], **named})


if __name__ == "__main__":
    main()
