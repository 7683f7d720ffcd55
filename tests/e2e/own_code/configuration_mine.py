"""Configuration of a model whose code is in its own folder. `modeling_mine.py` has the model."""

from typing import Any

from transformers import PretrainedConfig


class MineConfig(PretrainedConfig):
    """Sizes of a small language model."""

    model_type = "mine"

    def __init__(self, hidden_size: int = 64, num_layers: int = 2, vocab_size: int = 512, **values: Any) -> None:
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.vocab_size = vocab_size
        super().__init__(**values)
