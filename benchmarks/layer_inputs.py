"""What mcore-bridge's Gemma 4 with embeddings of every layer and shared keys holds, keeps and trains (E2B, E4B).

    .venv-node/bin/python -m benchmarks.layer_inputs

Needs the node environment (torch, transformers, megatron-core, ms-swift). Runs the stages of a small model on the CPU
(bridge_modules.py), each on the first of TP ranks, and prints JSON:

- "parameters": {"TP STAGE": parameters};
- "saved": {"TP STAGE": bytes} of the storages that a forward pass of TOKENS keeps. A stage before the last computes no
  logits. What a later stage received stays for its backward pass, and counts;
- "lost": for the projection of queries, keys and values of every layer, whether full recompute changes its gradient.

tests/estimate/test_layer_inputs.py holds the answers.
"""

import json

import torch

from benchmarks.bridge_modules import Kept, models, prepare, rank_parameters
from benchmarks.small_models import GEMMA_4_WITH_LAYER_INPUTS

TOKENS, STAGES, SIZES = 64, 3, (1, 2, 4)


def stage_parameters(tensor: int, stage: int) -> int:
    """Return the parameters of the language model on the first rank of a stage."""
    [model] = models(GEMMA_4_WITH_LAYER_INPUTS, stage, tensor=tensor, pipeline=STAGES)
    return rank_parameters([model.language_model])[0]


def _run(model: torch.nn.Module, entering: torch.Tensor, *, first: bool) -> torch.Tensor:
    numbers = torch.arange(TOKENS)[None]
    extra = {"llm_input_ids": numbers} if first else {}
    if not first:
        model.set_input_tensor(entering)
    return model(
        input_ids=numbers,
        position_ids=numbers,
        attention_mask=None,
        decoder_input=entering if first else None,
        extra_block_kwargs=extra,
    )


def saved(tensor: int) -> list[int]:
    """Return the bytes that each stage before the last keeps."""
    entering = torch.randn(TOKENS // tensor, 1, 256, dtype=torch.bfloat16, requires_grad=True) * 1
    answer = []
    for stage in range(STAGES - 1):
        [model] = models(GEMMA_4_WITH_LAYER_INPUTS, stage, tensor=tensor, pipeline=STAGES)
        with Kept(model) as kept:
            leaving = _run(model.language_model, entering, first=stage == 0)
        storage = entering.untyped_storage()
        kept.sizes.pop(storage.data_ptr(), None)
        # Two flags of a row say which keys it has.
        flags = 2 * 2 * len(entering) if stage else 0
        answer.append(kept.bytes + storage.nbytes() - flags)
        entering = leaving.detach().clone().requires_grad_()
    return answer


def lost() -> list[bool]:
    """Return for every layer whether its projection's gradient changes with full recompute."""
    [model] = models(GEMMA_4_WITH_LAYER_INPUTS)
    model.train()
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.ones_(weight) if weight.dim() == 1 else torch.nn.init.normal_(weight, std=0.05)
    decoder, gradients = model.language_model.decoder, []
    start = torch.randn(TOKENS, 1, 256, dtype=torch.bfloat16)
    for granularity in (None, "full"):
        decoder.config.recompute_granularity = granularity
        decoder.config.recompute_method, decoder.config.recompute_num_layers = "uniform", 1
        model.zero_grad()
        entering = start.detach().requires_grad_() * 1
        _run(model.language_model, entering, first=True).float().square().mean().backward()
        gradients.append([layer.self_attention.linear_qkv.weight.grad for layer in decoder.layers])
    return [not torch.equal(plain, again) for plain, again in zip(*gradients, strict=True)]


def main() -> None:
    """Print what is counted as JSON."""
    prepare()
    names = [(tensor, stage) for tensor in SIZES for stage in range(STAGES)]
    sizes = {(tensor, stage): size for tensor in SIZES for stage, size in enumerate(saved(tensor))}
    answer = {
        "parameters": {f"{tensor} {stage}": stage_parameters(tensor, stage) for tensor, stage in names},
        "saved": {f"{tensor} {stage}": size for (tensor, stage), size in sizes.items()},
        "lost": lost(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
