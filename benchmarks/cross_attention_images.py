"""Inputs of a small Mllama with images. It needs torch."""

import torch

from benchmarks.small_models import CROSS_ATTENTION_TOWER

TILES = 4
SQUARE = 6
"""The number of the aspect ratio of 2 x 2 tiles."""


def cross_attention_images(sequences: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return an image of four tiles for each sequence, which every token sees."""
    edge = CROSS_ATTENTION_TOWER["image_size"]
    return {
        "pixel_values": torch.randn(sequences, 1, TILES, 3, edge, edge),
        "aspect_ratio_ids": torch.full((sequences, 1), SQUARE),
        "aspect_ratio_mask": torch.ones(sequences, 1, TILES, dtype=torch.long),
        "cross_attention_mask": torch.ones(sequences, tokens, 1, TILES, dtype=torch.long),
    }
