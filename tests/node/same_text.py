"""same_text.py FOLDER TEMPLATE...: print what training and serving make of one conversation, for each template.

A node's Python runs it. Training is LLaMA-Factory's processor of SFT data; serving is what its ChatModel gives to
`generate` (0.9.5 src/llamafactory/data/processor/supervised.py, src/llamafactory/chat/hf_engine.py).
"""

import json
import sys
from typing import Any
from unittest.mock import Mock

import torch
from llamafactory.chat.hf_engine import HuggingfaceEngine
from llamafactory.data.mm_plugin import get_mm_plugin
from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
from llamafactory.data.template import get_template_and_fix_tokenizer
from llamafactory.hparams import DataArguments, GeneratingArguments, ModelArguments
from llamafactory.model import load_tokenizer
from PIL import Image

from backend.node.serving.llamafactory_chat import encode_as_trained

SYSTEM = "Answer in one word."
TURNS = ("What is 3 plus 4?", "Seven.", "And in Chinese? 三加四", "七。")


def conversation(images: list[Any]) -> list[dict[str, str]]:
    roles = ("user", "assistant") * (len(TURNS) // 2)
    messages = [{"role": role, "content": content} for role, content in zip(roles, TURNS, strict=True)]
    messages[0]["content"] = "<image>" * len(images) + messages[0]["content"]
    return messages


def texts(folder: str, name: str, thinks: bool, pictures: list[Any]) -> dict[str, Any]:
    """Return the text that was trained before the last answer, and the prompt that a chat serves."""
    trained_template, tokenizer, processor, data_args = load(folder, name, enable_thinking=thinks)
    messages = conversation(pictures)
    trainer = SupervisedDatasetProcessor(trained_template, tokenizer, processor, data_args)
    trained, labels = trainer._encode_data_example(messages[:-1], messages[-1:], SYSTEM, None, pictures, [], [])
    template, tokenizer, processor, _ = load(folder, name, enable_thinking=thinks)
    encode_as_trained(template, {})
    served, _ = HuggingfaceEngine._process_args(
        Mock(device="cpu", dtype=torch.float32), tokenizer, processor, template, GeneratingArguments().to_dict(),
        conversation(pictures)[:-1], SYSTEM, images=pictures or None, input_kwargs={},
    )  # fmt: skip
    prompt = served["inputs"][0].tolist()
    return {
        "trained": tokenizer.decode(trained[: len(prompt)]),
        "served": tokenizer.decode(prompt),
        "answer": tokenizer.decode(trained[len(prompt) :]),
        "is_prompt_trained": labels[len(prompt) - 1] != -100,
        "is_answer_trained": labels[len(prompt)] != -100,
    }


def load(folder: str, name: str, **arguments: Any) -> tuple[Any, Any, Any, Any]:
    module = load_tokenizer(ModelArguments(model_name_or_path=folder, image_max_pixels=4096))
    data_args = DataArguments(template=name, cutoff_len=4096, **arguments)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
    if module["processor"] is None:  # a model without images; the plugin of the template would need its processor
        template.mm_plugin = get_mm_plugin("base")
    return template, module["tokenizer"], module["processor"], data_args


def main() -> None:
    folder, *names = sys.argv[1:]
    pictures = [Image.new("RGB", (56, 84), "red")] if "vision" in folder else []
    print(
        "\n" + json.dumps({name: [texts(folder, name, thinks, pictures) for thinks in (True, False)] for name in names})
    )


if __name__ == "__main__":
    main()
