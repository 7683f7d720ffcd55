"""Operators of Gemma 3n and Gemma 4 around attention and FFN: AltUp, Laurel, and the layers' own embeddings."""

from backend.job.model.operators import Activation, AltUp, Keep, Linear, Norm, Operator, Share
from backend.job.model.shape import LayerShape


def before_layers(kind: LayerShape, layers: int, hidden: int, *, megatron: bool = False) -> tuple[Operator, ...]:
    """Return what runs once before the layers (modeling_gemma3n.py Gemma3nTextModel.forward, modeling_gemma4.py
    project_per_layer_inputs; mcore-bridge 1.6.5 model/mm_gpts/gemma4.py Gemma4TextGPTModel); nothing for other models.
    """
    share: Share = "split" if megatron else "whole"
    operators: list[Operator] = []
    if width := kind.per_layer * layers:
        operators += (
            Linear(name="per_layer_model_projection", inputs=hidden, outputs=width, share=share, after_norm=True),
            Norm(width=width, parameters=kind.per_layer, in_fp32=True),
        )
    if kind.altup:
        operators += (
            *_copy_projections("altup_projections", kind.altup, hidden),
            AltUp(step="enter", width=hidden, copies=kind.altup),
        )
    return tuple(operators)


def after_layers(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return what runs once between the last layer and the final norm."""
    if not kind.altup:
        return ()
    return (
        *_copy_projections("altup_unembed_projections", kind.altup, hidden),
        AltUp(step="leave", width=hidden, copies=kind.altup),
    )


def _copy_projections(name: str, copies: int, hidden: int) -> tuple[Operator, ...]:
    """Return a projection of every copy but the first. They read what AltUp saves already."""
    projection = Linear(name=name, inputs=hidden, outputs=hidden, share="whole", after_norm=True, beside=True)
    return (projection,) * (copies - 1)


def predict(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return AltUp's prediction of all copies (modeling_gemma3n.py Gemma3nTextAltUp.predict). Its router runs again in
    the correction."""
    n = kind.altup
    if not n:
        return ()
    return (
        Norm(width=hidden, parameters=hidden, in_fp32=True),
        Linear(name="modality_router", inputs=hidden, outputs=n, share="whole", active=2, after_norm=True),
        Linear(name="prediction_coefs", inputs=n, outputs=n**2, share="whole"),
        AltUp(step="predict", width=hidden, copies=n),
    )


def correct(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return AltUp's correction of all copies by the layer's result (Gemma3nTextAltUp.correct)."""
    n = kind.altup
    if not n:
        return ()
    return (
        Norm(width=hidden, parameters=0),
        Linear(name="correction_coefs", inputs=n, outputs=n, share="whole"),
        AltUp(step="correct", width=hidden, copies=n),
    )


def laurel(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the low-rank branch beside the attention, which reads the output of the same norm
    (Gemma3nTextLaurelBlock)."""
    if not kind.laurel:
        return ()
    return (
        Linear(name="linear_left", inputs=hidden, outputs=kind.laurel, share="whole", after_norm=True, beside=True),
        Keep(width=kind.laurel),
        Linear(name="linear_right", inputs=kind.laurel, outputs=hidden, share="whole"),
        Norm(width=hidden, parameters=hidden, in_fp32=True),
    )


def per_layer_gate(kind: LayerShape, hidden: int, *, megatron: bool = False) -> tuple[Operator, ...]:
    """Return the gate by the layer's own embedding of a token (modeling_gemma4.py Gemma4TextDecoderLayer). Megatron's
    form reads the embedding from the tensor of all layers, which is counted once."""
    width = kind.per_layer
    if not width:
        return ()
    if megatron:
        return (
            Linear(name="per_layer_input_gate", inputs=hidden, outputs=width, share="split", after_norm=True),
            # The projection's input, the function's input and output, and the product.
            Keep(width=hidden, weight_only=True),
            Keep(width=2 * width, split=True),
            Keep(width=width, split=True, weight_only=True),
            Linear(name="per_layer_projection", inputs=width, outputs=hidden, share="split"),
            Norm(width=hidden, parameters=hidden, is_joined=True),
        )
    return (
        Linear(name="per_layer_input_gate", inputs=hidden, outputs=width, share="whole", after_norm=True),
        # The function's input and output, the embedding, and the product that the next projection reads.
        Activation(width=width, gated=True, module="mlp"),
        Linear(name="per_layer_projection", inputs=width, outputs=hidden, share="whole"),
        Norm(width=hidden, parameters=hidden, in_fp32=True),
    )
