"""Layers of a model that Megatron-LM arguments describe: a GPT with biases and LayerNorms, or a modern decoder."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.estimate.model.layers import LayerKind, ModelLayers
from backend.estimate.model.model_layers import model_layers
from backend.job.model import Mla, ModelShape, parse_model
from backend.job.model.operators import Keep, Linear, Norm, Operator

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    # The 256k model that Megatron-LM's release tests use with it.
    "GPTSentencePieceTokenizer": 256000,
    # Given with --vocab-size.
    "NullTokenizer": 0,
}


def number(args: Mapping[str, Any], key: str, default: int = 1) -> int:
    """Return a size, or its default."""
    return int(args.get(key) or default)


def gpt_layers(args: Mapping[str, Any]) -> ModelLayers:
    """Return the layers of a case. Raises KeyError for a missing argument."""
    layers = model_layers(_shape(args))
    options = _Gpt(
        bias=not args.get("--disable-bias-linear"),
        layer_norm=args.get("--normalization", "LayerNorm") == "LayerNorm",
        dropout=float(args.get("--hidden-dropout", 0.1)) > 0,
    )
    learned = args.get("--position-embedding-type", "learned_absolute") == "learned_absolute"
    return replace(
        layers,
        positions=int(args["--seq-length"]) * int(args["--hidden-size"]) if learned else 0,
        kinds=tuple(map(options.kind, layers.kinds)),
        output=replace(layers.output, operators=tuple(options.norms(layers.output.operators))),
    )


def _shape(args: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a case, as the model families in backend/job/model describe it."""
    hidden, heads = int(args["--hidden-size"]), int(args["--num-attention-heads"])
    latent = bool(args.get("--multi-latent-attention"))
    gated = bool(args.get("--swiglu"))
    # megatron/training/arguments.py reduces the FFN width because SwiGLU adds a third matrix.
    ffn = number(args, "--ffn-hidden-size", int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden)
    experts = number(args, "--num-experts", 0)
    vocabulary = VOCABULARIES[args.get("--tokenizer-type", "GPT2BPETokenizer")]
    leading = re.match(r"\(\[0\]\*(\d+)", str(args.get("--moe-layer-freq", "")))
    shape = parse_model(
        {
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": int(args["--num-layers"]),
            "num_attention_heads": heads,
            "num_key_value_heads": number(args, "--num-query-groups", heads),
            "head_dim": number(args, "--kv-channels", hidden // heads),
            "vocab_size": number(args, "--vocab-size", vocabulary),
            "tie_word_embeddings": not args.get("--untie-embeddings-and-output-weights"),
            "attention_bias": not args.get("--disable-bias-linear"),
            "mlp_gated": gated,
            "qk_norm": bool(args.get("--qk-layernorm")) and not latent,
            "num_experts": experts,
            "num_experts_per_tok": number(args, "--moe-router-topk", 2),
            "moe_intermediate_size": number(args, "--moe-ffn-hidden-size", ffn),
            "shared_expert_intermediate_size": number(args, "--moe-shared-expert-intermediate-size", 0),
            "first_k_dense_replace": int(leading[1]) if leading else 0,
        }
    )
    if not latent:
        return shape
    ranks = {"q_lora": number(args, "--q-lora-rank", 0), "kv_lora": number(args, "--kv-lora-rank", 32)}
    # Head widths: defaults of megatron-core's MLATransformerConfig.
    mla = Mla(heads=heads, **ranks, nope_dim=128, rope_dim=64, value_dim=128)
    return replace(shape, kinds=tuple(replace(kind, attention=mla) for kind in shape.kinds))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gpt:
    """Parts of a Megatron-LM GPT that the model families in backend/job/model do not have."""

    bias: bool
    layer_norm: bool
    dropout: bool

    def kind(self, kind: LayerKind) -> LayerKind:
        """Return the layer with FFN biases, LayerNorms and two dropout masks."""
        operators = list(self.norms(kind.operators))
        if self.dropout:
            operators += [Keep(width=2 * kind.hidden, bytes=1)]
        return replace(kind, operators=tuple(operators))

    def norms(self, operators: Iterable[Operator]) -> Iterable[Operator]:
        """Return the operators with the weights of LayerNorm and biases."""
        for operator in operators:
            if isinstance(operator, Norm) and self.layer_norm:
                yield replace(operator, parameters=2 * operator.parameters)
            elif isinstance(operator, Linear) and self.bias and operator.name in ("up", "shared_up"):
                yield replace(operator, bias=operator.outputs)
            elif isinstance(operator, Linear) and self.bias and operator.name in ("down", "shared_down"):
                yield replace(operator, whole_bias=operator.outputs)
            else:
                yield operator
