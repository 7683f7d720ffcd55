"""Build a tiny Qwen3 model, its tokenizer and a data set without a network.

A node's Python, which has transformers, runs it as a script: `python tiny_model.py FOLDER`. The server imports the
names below, so torch and transformers are imported inside the functions that need them.
"""

import json
import random
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

MODEL_FOLDER = "model"
"""The model and its tokenizer, under the given folder."""

DATA_FOLDER = "data"
"""`dataset_info.json` and the rows, under the given folder."""

DATASET = "demo"
TEMPLATE = "qwen3_nothink"
ROWS = 512

_VERSION = "1"
_SEED = 42
_VOCABULARY = 512
_SPECIAL_TOKENS = _PAD, _TURN_START, _TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_WEEKDAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAYS_ZH = ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日")

Row = dict[str, str]


def build(folder: Path) -> None:
    """Write the model and the data set under `folder`, equal on every machine. A finished folder is not changed."""
    marker = folder / "demo-model-version"
    if marker.exists() and marker.read_text() == _VERSION:
        return
    (folder / DATA_FOLDER).mkdir(parents=True, exist_ok=True)
    rows = make_rows(ROWS)
    write_dataset(folder / DATA_FOLDER, rows)
    write_model(folder / MODEL_FOLDER, rows)
    marker.write_text(_VERSION)


def make_rows(count: int) -> list[Row]:
    """Return `count` distinct questions with correct answers about sums, differences and weekdays, half in Chinese."""
    rng = random.Random(_SEED)  # noqa: S311  # the same rows everywhere, no secret
    return list(islice(_distinct_rows(rng), count))


def write_dataset(folder: Path, rows: list[Row]) -> None:
    """Write one data set, named `DATASET`, in LLaMA-Factory's alpaca format."""
    (folder / f"{DATASET}.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({DATASET: {"file_name": f"{DATASET}.json"}}, indent=1))


def write_model(folder: Path, rows: list[Row]) -> None:
    """Write a random Qwen3 of two layers, whose sizes are multiples of 4, and a tokenizer trained on `rows`."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train_tokenizer(text for row in rows for text in row.values()),
        eos_token=_TURN_END,
        pad_token=_PAD,
        additional_special_tokens=[_TURN_START, _TURN_END],
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(_SEED)
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def _train_tokenizer(texts: Iterator[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # One token per digit, as in Qwen, so that sums can be learned.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(_SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _distinct_rows(rng: random.Random) -> Iterator[Row]:
    seen: set[str] = set()
    while True:
        for kind in (_sum, _difference, _weekday):
            for question, answer in kind(rng):
                if question not in seen:
                    seen.add(question)
                    yield {"instruction": question, "input": "", "output": answer}


def _sum(rng: random.Random) -> tuple[tuple[str, str], ...]:
    a, b = rng.randrange(100), rng.randrange(100)
    return (
        (f"What is {a} plus {b}?", f"The sum of {a} and {b} is {a + b}."),
        (f"{a} 加 {b} 等于多少？", f"{a} 与 {b} 的和是 {a + b}。"),
    )


def _difference(rng: random.Random) -> tuple[tuple[str, str], ...]:
    b, a = sorted((rng.randrange(100), rng.randrange(100)))
    return (
        (f"What is {a} minus {b}?", f"The difference of {a} and {b} is {a - b}."),
        (f"{a} 减 {b} 等于多少？", f"{a} 与 {b} 的差是 {a - b}。"),
    )


def _weekday(rng: random.Random) -> tuple[tuple[str, str], ...]:
    day = date(2020, 1, 1) + timedelta(days=rng.randrange(3653))
    return (
        (f"Which day of the week is {day}?", f"{day} is a {_WEEKDAYS_EN[day.weekday()]}."),
        (f"{day.year} 年 {day.month} 月 {day.day} 日是星期几？", f"这一天是{_WEEKDAYS_ZH[day.weekday()]}。"),
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
