"""Tokenising of the data sets of FOLDER/config.yaml by LLaMA-Factory, without a GPU. prepare_data.py starts it.

    tokenise.py FOLDER TARGET '{"shuffle": SEED|null, "megatron": BOOL}'

LLaMA-Factory loads TARGET as `tokenized_path`. The program follows LLaMA-Factory's own workflows (0.9.5
src/llamafactory/train/{pt,sft,dpo,mca}/workflow.py) up to the data. Under Megatron samples are one token longer, and
its collator cuts this token off. The rows keep their order, or the seed shuffles them: mcore_adapter reads them in
order.
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
"""Keys of the training that need a device, a package or a folder. Tokenising needs none of these."""
STAGES = {"dpo": "rm"}
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
    datasets = get_dataset(template, model, data, training, stage=stage, **tokenizer)
    evaluation = datasets.get("eval_dataset") or {}
    if not isinstance(evaluation, dict):
        return DatasetDict({"train": datasets["train_dataset"], "validation": evaluation})
    named = {f"validation_{name}": table for name, table in evaluation.items()}
    return DatasetDict({"train": datasets["train_dataset"], **named})


if __name__ == "__main__":
    main()
