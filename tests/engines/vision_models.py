"""Write a small random model of a vision-language family with its processor. A node's Python runs this file.

    python vision_models.py FAMILY FOLDER TOKENIZER
    python vision_models.py pictures FOLDER ""
    python vision_models.py count FOLDER ""

TOKENIZER is the folder of the demo's model. `pictures` writes four pictures; `count` prints the parameters of a model.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image

TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 528, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
PLAIN = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
PATCHES = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
SQUARE = {"height": 56, "width": 56}
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def marked(tokenizer: Any, **marks: str) -> dict[str, int]:
    """Add special tokens to a tokenizer, also as its attributes, and return their ids."""
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks.values())}, False)
    ids = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}
    tokenizer._set_model_specific_special_tokens(special_tokens=marks)
    return ids


def qwen(tokenizer: Any, generation: str, tower: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return Qwen2-VL or Qwen2.5-VL, and its processor."""
    ids = marked(
        tokenizer,
        start="<|vision_start|>",
        end="<|vision_end|>",
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
    )
    config = getattr(hf, f"{generation}Config")(
        text_config={**TEXT, "rope_scaling": ROPE},
        vision_config={**PATCHES, **tower},
        image_token_id=ids["image_token"],
        video_token_id=ids["video_token"],
        vision_start_token_id=ids["start"],
        vision_end_token_id=ids["end"],
    )
    shape = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 784, "max_pixels": 50176}
    processor = getattr(hf, f"{generation}Processor")(
        image_processor=hf.Qwen2VLImageProcessor(**shape),
        tokenizer=tokenizer,
        video_processor=hf.Qwen2VLVideoProcessor(**shape),
        chat_template=CHAT,
    )
    return config, processor


def qwen2(tokenizer: Any) -> tuple[Any, Any]:
    """Return Qwen2-VL."""
    return qwen(tokenizer, "Qwen2VL", {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2})


def qwen2_5(tokenizer: Any) -> tuple[Any, Any]:
    """Return Qwen2.5-VL."""
    tower = {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64, "fullatt_block_indexes": [1]}
    return qwen(tokenizer, "Qwen2_5_VL", {**tower, "window_size": 56})


def llava(tokenizer: Any) -> tuple[Any, Any]:
    """Return LLaVA with a CLIP tower."""
    ids = marked(tokenizer, image_token="<image>")
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**TEXT),
        vision_config=hf.CLIPVisionConfig(**PLAIN),
        image_token_id=ids["image_token"],
        image_token_index=ids["image_token"],
    )
    processor = hf.LlavaProcessor(
        image_processor=hf.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=SQUARE),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    return config, processor


def gemma3(tokenizer: Any) -> tuple[Any, Any]:
    """Return Gemma 3."""
    ids = marked(
        tokenizer,
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
    )
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**TEXT, sliding_window=32),
        vision_config=hf.SiglipVisionConfig(**PLAIN),
        mm_tokens_per_image=4,
        boi_token_index=ids["boi_token"],
        eoi_token_index=ids["eoi_token"],
        image_token_index=ids["image_token"],
    )
    tokenizer.image_token_id = ids["image_token"]
    image_processor = hf.Gemma3ImageProcessor(size=SQUARE)
    return config, hf.Gemma3Processor(image_processor, tokenizer, chat_template=CHAT, image_seq_length=4)


def paligemma(tokenizer: Any) -> tuple[Any, Any]:
    """Return PaliGemma."""
    ids = marked(tokenizer, image_token="<image>")
    config = hf.PaliGemmaConfig(
        text_config=hf.GemmaConfig(**{**TEXT, "vocab_size": 2048}),
        vision_config=hf.SiglipVisionConfig(**PLAIN, projection_dim=64, num_image_tokens=16),
        image_token_index=ids["image_token"],
        projection_dim=64,
    )
    image_processor = hf.SiglipImageProcessor(size=SQUARE)
    image_processor.image_seq_length = 16
    return config, hf.PaliGemmaProcessor(image_processor, tokenizer, chat_template=CHAT)


def mllama(tokenizer: Any) -> tuple[Any, Any]:
    """Return Mllama (Llama 3.2 Vision)."""
    ids = marked(tokenizer, image_token="<|image|>")
    text = {**TEXT, "cross_attention_layers": [1, 3], "num_hidden_layers": 4}
    tower = {**PLAIN, "attention_heads": 2, "num_global_layers": 1}
    del text["head_dim"], tower["num_attention_heads"]
    config = hf.MllamaConfig(
        text_config=text,
        vision_config={**tower, "intermediate_layers_indices": [0], "vision_output_dim": 64},
        image_token_index=ids["image_token"],
    )
    image_processor = hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    return config, hf.MllamaProcessor(image_processor, tokenizer, chat_template=CHAT)


FAMILIES: Mapping[str, Callable[[Any], tuple[Any, Any]]] = {
    "qwen2_vl": qwen2,
    "qwen2_5_vl": qwen2_5,
    "llava": llava,
    "gemma3": gemma3,
    "paligemma": paligemma,
    "mllama": mllama,
}


def main() -> None:
    """Write the model and its processor."""
    family, folder, text = sys.argv[1:]
    if family == "pictures":
        for number in range(4):
            Image.new("RGB", (64 + 32 * number, 64), (60 * number, 100, 200 - 40 * number)).save(
                Path(folder) / f"{number}.png"
            )
        return
    if family == "count":
        model = hf.AutoModelForImageTextToText.from_pretrained(folder)
        print(sum(parameter.numel() for parameter in model.parameters()))
        return
    tokenizer = hf.AutoTokenizer.from_pretrained(text)
    config, processor = FAMILIES[family](tokenizer)
    torch.manual_seed(0)
    hf.AutoModelForImageTextToText.from_config(config).save_pretrained(Path(folder))
    processor.save_pretrained(Path(folder))


if __name__ == "__main__":
    main()
