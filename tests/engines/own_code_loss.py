"""One optimizer step of transformers' Trainer on CPU ranks of torchrun: own_code_loss.py ACCUMULATION MODEL...

Rank 0 prints the logged loss and gradient norm of each model, whose code is in its folder.
"""

import json
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

ROWS, TOKENS = 2, 16


def step_of(model, accumulation):
    """Return the loss and the gradient norm that Trainer logs at the first step. All rows have equally many tokens."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model, trust_remote_code=True)
    module = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    rows = torch.randint(0, config.vocab_size, (64, TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=accumulation,
        )
        trainer = Trainer(module, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
        trainer.train()
    logged = trainer.state.log_history[0]
    return {name: logged[name] for name in ("loss", "grad_norm")}


steps = [step_of(model, int(sys.argv[1])) for model in sys.argv[2:]]
if torch.distributed.get_rank() == 0:
    print("\n" + json.dumps(steps))
