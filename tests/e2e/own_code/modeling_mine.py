"""A small language model with two stacks of layers, as a folder of the hub brings it. No estimate knows it."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_mine import MineConfig

IGNORED = -100
"""Label of tokens without a loss."""


class MineMixer(nn.Module):
    """Adds the mean of all tokens up to each token."""

    def __init__(self, config: MineConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, hidden_states.shape[1] + 1, device=hidden_states.device)
        return hidden_states + self.proj(hidden_states.cumsum(1) / count[:, None])


class MineLayer(nn.Module):
    """An FFN beside a residual."""

    def __init__(self, config: MineConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.down = nn.Linear(2 * config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states + self.down(functional.gelu(self.up(self.norm(hidden_states))))


class MineForCausalLM(PreTrainedModel, GenerationMixin):
    """Predicts the next token."""

    config_class = MineConfig

    def __init__(self, config: MineConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mixers = nn.ModuleList(MineMixer(config) for _ in range(config.num_layers))
        self.layers = nn.ModuleList(MineLayer(config) for _ in range(config.num_layers))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    # With **kwargs, transformers' Trainer would expect a loss that is divided by its number of items.
    def forward(
        self, input_ids: torch.Tensor, attention_mask: Any = None, labels: torch.Tensor | None = None
    ) -> CausalLMOutput:
        hidden_states = self.embed_tokens(input_ids)
        for layer in [*self.mixers, *self.layers]:
            hidden_states = layer(hidden_states)
        logits = self.lm_head(hidden_states)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        return CausalLMOutput(loss=loss, logits=logits)
