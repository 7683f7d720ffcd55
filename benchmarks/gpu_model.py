"""Writes a model with random weights, for benchmarks/gpu.py. A node's Python runs it.

    python gpu_model.py FOLDER TOKENIZER CONFIG

CONFIG is a config.json. The model has its shape; the tokenizer is the demo's, with the marks of pictures added.
"""

import json
import sys
from pathlib import Path
from typing import Any

MARKS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
PATCHES = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
"""Qwen3-VL's; its preprocessor_config.json."""


def main(folder: Path, tokenizer_folder: Path, config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    is_vision = "vision_config" in config
    if is_vision:
        tokenizer.add_tokens(list(MARKS.values()), special_tokens=True)
        config |= {key: tokenizer.convert_tokens_to_ids(mark) for key, mark in MARKS.items()}
        _write_processor(folder, tokenizer)
    else:
        tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model_type = config.pop("model_type")
    built = AutoConfig.for_model(model_type, **config)
    family = AutoModelForImageTextToText if is_vision else AutoModelForCausalLM
    # A GPU fills 8 billion weights in a second, a CPU in minutes.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = family.from_config(built, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def _write_processor(folder: Path, tokenizer: Any) -> None:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    shape = {**PATCHES, "size": {"shortest_edge": 1024, "longest_edge": 16_777_216}}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shape, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**shape),
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
