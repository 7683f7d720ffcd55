"""Runs on a node, by prepare_data.py: LLaMA-Factory tokenises what FOLDER/config.yaml names, without a GPU.

    tokenise.py FOLDER TARGET '{"shuffle": SEED|null, "megatron": BOOL}'

TARGET then is what LLaMA-Factory loads as `tokenized_path`. The steps are those of its own workflows (0.9.5
src/llamafactory/train/{pt,sft,dpo,mca}/workflow.py) up to the data; under Megatron samples are one token longer, which
its collator cuts off again. The order of the rows stays, or is that of the seed: mcore_adapter reads them in order.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

DROPPED = (
    *("deepspeed", "fsdp", "fsdp_config", "ddp_backend", "resume_from_checkpoint", "tokenized_path", "plot_loss"),
    *("bf16", "fp16", "pure_bf16", "tf32", "fp8", "optim", "quantization_bit", "enable_liger_kernel", "use_unsloth"),
)
"""Keys of the training that ask for a device, a package or a folder which tokenising does without."""
STAGES = {"dpo": "rm"}
LARGE = 100_000
"""Rows from which on several processes save sooner than one."""


def main() -> None:
    folder, target, text = sys.argv[1:]
    options = json.loads(text)
    import yaml

    with open(os.path.join(folder, "config.yaml"), encoding="utf-8") as file:
        config = yaml.safe_load(file)
    tables = tokenise(config, options["megatron"])
    if options["shuffle"] is not None:
        tables["train"] = tables["train"].shuffle(seed=options["shuffle"])
    # Put into another order, rows are gathered one by one.
    is_large = len(tables["train"]) >= LARGE
    tables.save_to_disk(target, num_proc=config.get("preprocessing_num_workers") if is_large else None)
    record = {**options, "rows": {name: len(table) for name, table in tables.items()}, "config": config}
    with open(os.path.join(target, "megaboard.json"), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, ensure_ascii=False)


def tokenise(config: dict[str, Any], megatron: bool) -> Any:
    """A DatasetDict: `train`, and the evaluation data where the configuration has some."""
    from datasets import DatasetDict
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    kept = {key: value for key, value in config.items() if key not in DROPPED}
    kept.update(use_cpu=True, report_to="none")
    model, data, training, finetuning, _ = get_train_args(kept)
    if megatron:
        if finetuning.stage == "sft":
            data.neat_packing = data.neat_packing or bool(config.get("sequence_packing"))
            data.packing = data.neat_packing or data.packing
        data.cutoff_len += 1
    tokenizer = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(tokenizer["tokenizer"], data)
    stage = STAGES.get(finetuning.stage, finetuning.stage)
    found = get_dataset(template, model, data, training, stage=stage, **tokenizer)
    evaluation = found.get("eval_dataset") or {}
    if not isinstance(evaluation, dict):
        return DatasetDict({"train": found["train_dataset"], "validation": evaluation})
    named = {f"validation_{name}": table for name, table in evaluation.items()}
    return DatasetDict({"train": found["train_dataset"], **named})


if __name__ == "__main__":
    main()
