"""Data sets for the engine runs, made from the demo's rows: preference pairs, judged answers, plain text, pictures.

A node's Python runs this file to make another tiny model: `python tiny_data.py FOLDER vision|experts|predicting`.
"""

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.demo.tiny_model import DATA_FOLDER, make_rows

PREFERENCE, FEEDBACK, TEXT, PICTURES, GALLERIES = "preference", "feedback", "text", "pictures", "galleries"
MODELS = {"vision": "vision-model", "experts": "experts-model", "predicting": "predicting-model"}
VISION_TEMPLATE = "qwen3_vl_nothink"
ROWS = 200
IMAGES = (1, 2, 4)
"""Numbers of images per sample of GALLERIES, in turn."""

_ROLES = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
PICTURES_ENTRY = {"formatting": "sharegpt", "columns": {"messages": "messages", "images": "images"}, "tags": _ROLES}
"""Entry of dataset_info.json for messages with images."""


def write_datasets(folder: Path) -> None:
    """Write data sets beside the demo's, in the same dataset_info.json."""
    rows = make_rows(ROWS)
    answers = [row["output"] for row in rows]
    wrong = random.Random(0).sample(answers, len(answers))  # noqa: S311  # the same pairs everywhere, no secret
    preference = [
        {
            "conversations": [{"from": "human", "value": row["instruction"]}],
            "chosen": {"from": "gpt", "value": row["output"]},
            "rejected": {"from": "gpt", "value": other},
        }
        for row, other in zip(rows, wrong, strict=True)
    ]
    # Every answer that is wanted has one beside it that is not.
    feedback = [
        {**row, "output": answer, "wanted": wanted}
        for row, other in zip(rows, wrong, strict=True)
        for answer, wanted in ((row["output"], True), (other, False))
    ]
    judged = {"prompt": "instruction", "response": "output", "kto_tag": "wanted"}
    pictures = [_seen(row, number, 1) for number, row in enumerate(rows)]
    galleries = [_seen(row, number, IMAGES[number % len(IMAGES)]) for number, row in enumerate(rows)]
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    written = {
        PREFERENCE: (preference, {"ranking": True, "formatting": "sharegpt", "columns": columns}),
        FEEDBACK: (feedback, {"columns": judged}),
        TEXT: ([{"text": " ".join(row.values())} for row in rows], {"columns": {"prompt": "text"}}),
        PICTURES: (pictures, PICTURES_ENTRY),
        GALLERIES: (galleries, PICTURES_ENTRY),
    }
    data = folder / DATA_FOLDER
    info = json.loads((data / "dataset_info.json").read_text())
    for name, (content, entry) in written.items():
        (data / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        info[name] = {"file_name": f"{name}.json", **entry}
    (data / "dataset_info.json").write_text(json.dumps(info, indent=1))


def _seen(row: Mapping[str, str], number: int, images: int) -> dict[str, Any]:
    """Return a row about some of the four pictures."""
    messages = [
        {"role": "user", "content": "<image>" * images + row["instruction"]},
        {"role": "assistant", "content": row["output"]},
    ]
    return {"messages": messages, "images": [f"{(number + image) % 4}.png" for image in range(images)]}


def _vision_config(start: int, end: int, image: int, video: int) -> Any:
    """Return the configuration of a Qwen3-VL with four text and two vision layers, for these tokens."""
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    return Qwen3VLConfig(
        text_config={
            "vocab_size": 528,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "rope_scaling": rope,
            "tie_word_embeddings": False,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [1],
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )


def write_vision_model(folder: Path, text_model: Path, pictures: Path) -> None:
    """Write a random Qwen3-VL with four text and two vision layers, the demo's tokenizer, and four pictures."""
    import torch
    from PIL import Image
    from transformers import (
        AutoTokenizer,
        Qwen2VLImageProcessor,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = AutoTokenizer.from_pretrained(text_model)
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_tokens(marks, special_tokens=True)
    torch.manual_seed(0)
    config = _vision_config(*tokenizer.convert_tokens_to_ids(marks))
    Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    size = {"shortest_edge": 1024, "longest_edge": 65536}
    shape = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shape, image_mean=[0.5] * 3, image_std=[0.5] * 3),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**shape),
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder)
    for number in range(4):
        colour = (60 * number, 100, 200 - 40 * number)
        Image.new("RGB", (64 + 32 * number, 64), colour).save(pictures / f"{number}.png")


def write_expert_model(folder: Path, text_model: Path) -> None:
    """Write a random Qwen3-MoE with four experts, two of them for each token, and the demo's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    AutoTokenizer.from_pretrained(text_model).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def write_predicting_model(folder: Path, text_model: Path) -> None:
    """Write a random GLM-4.5 with experts and a layer for multi-token prediction, and the demo's tokenizer.

    transformers has no such layer, so its weights are added to the file: those of the last layer, and its own, by the
    names of a release (mcore_adapter 0.10.0.dev0 models/glm4_moe/__init__.py).
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer, Glm4MoeConfig, Glm4MoeForCausalLM

    AutoTokenizer.from_pretrained(text_model).save_pretrained(folder)
    torch.manual_seed(0)
    config = Glm4MoeConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        num_hidden_layers=2,
        num_nextn_predict_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    Glm4MoeForCausalLM(config).save_pretrained(folder)
    file, own = folder / "model.safetensors", "model.layers.2."
    weights = load_file(file)
    copied = {name: weight for name, weight in weights.items() if name.startswith("model.layers.1.")}
    weights |= {name.replace("model.layers.1.", own): weight.clone() for name, weight in copied.items()}
    weights |= {own + name: torch.ones(64) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    weights[f"{own}eh_proj.weight"] = torch.randn(64, 128) / 8
    save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    made, kind = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "vision"
    text = made / "model"
    if kind == "vision":
        write_vision_model(made / MODELS[kind], text, made / DATA_FOLDER)
    elif kind == "experts":
        write_expert_model(made / MODELS[kind], text)
    else:
        write_predicting_model(made / MODELS[kind], text)
