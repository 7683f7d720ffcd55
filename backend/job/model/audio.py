"""Audio towers of models that hear: their weights, and those of their projector.

Each reader names the file of transformers 5.6 that it was read from.
"""

from collections.abc import Mapping
from typing import Any

from backend.job.model.config import Config, refusal
from backend.job.model.plain_towers import MOST_LAYERS
from backend.job.model.vision_shape import VisionShape

AUDIO: Mapping[str, str] = {
    "qwen2_audio": "qwen2_audio_encoder",
    "qwen3_asr": "qwen3_asr_encoder",
    "qwen3_asr_thinker": "qwen3_asr_audio_encoder",
    "voxtral": "voxtral_encoder",
}
"""Model types whose only tower hears, which audio_config describes -> model type of the tower."""


MOST_SIZE = 10**6
"""The largest size of a convolution that is believed."""


def whisper(audio: Config, **facts: Any) -> VisionShape:
    """Return the encoder of modeling_qwen2_audio.py and modeling_voxtral.py (Whisper's).

    Two convolutions of three frames each halve the frames once; keys have no bias. Every clip is padded to 30 s.
    """
    hidden, ffn = audio.size("d_model", "hidden_size"), audio.size("encoder_ffn_dim", "intermediate_size")
    positions, bins = audio.size("max_source_positions"), audio.size("num_mel_bins")
    return VisionShape(
        **{
            "depth": audio.size("encoder_layers", "num_hidden_layers", largest=MOST_LAYERS),
            "hidden": hidden,
            "ffn": ffn,
            "heads": audio.size("encoder_attention_heads", "num_attention_heads"),
            # The second convolution runs on every frame that attention reads; it stands for a patch embedding.
            "channels": 3 * hidden,
            "patch": 1,
            "patch_bias": True,
            "positions": positions,
            "image_patches": positions,
            "pooled": 2,
            # The first convolution and the last norm.
            "key_bias": False,
            "other": 3 * bins * hidden + hidden + 2 * hidden,
            **facts,
        }
    )


def _layers(audio: Config) -> int:
    """Return the weights of Whisper's layers."""
    hidden, ffn = audio.size("d_model"), audio.size("encoder_ffn_dim")
    attention = 4 * hidden**2 + 3 * hidden
    return audio.size("encoder_layers") * (attention + 2 * hidden * ffn + ffn + hidden + 4 * hidden)


def qwen_audio(audio: Config) -> tuple[int, int]:
    """Return the weights of the tower and of its projector in modeling_qwen2_5_omni.py."""
    hidden, out = audio.size("d_model"), audio.size("output_dim")
    convolutions = 3 * audio.size("num_mel_bins") * hidden + hidden + 3 * hidden**2 + hidden
    return _layers(audio) + convolutions + 2 * out + 2 * hidden, hidden * out + out


def qwen3_audio(audio: Config) -> tuple[int, int]:
    """Return the weights of the tower and of its projector in modeling_qwen3_omni_moe.py.

    LLaMA-Factory's `audio_tower.proj` names both matrices of the projector.
    """
    hidden, out, width = audio.size("d_model"), audio.size("output_dim"), audio.size("downsample_hidden_size")
    bins = audio.size("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    convolutions = 9 * width + width + 2 * (9 * width**2 + width) + width * bins * hidden
    layers = _layers(audio) + audio.size("encoder_layers") * hidden
    return layers + convolutions + 2 * hidden, hidden**2 + hidden + hidden * out + out


def gemma4_audio(audio: Config) -> int:
    """Return the weights of the tower in modeling_gemma4.py."""
    first, second = audio.get("subsampling_conv_channels") or (0, 0)
    hidden, width = audio.size("hidden_size"), audio.size("output_proj_dims")
    stem = 9 * first + first + 9 * first * second + second + second * 32 * hidden
    depth = audio.size("num_hidden_layers", largest=MOST_LAYERS)
    layer = _conformer_layer(hidden, audio.size("num_attention_heads"), audio.size("conv_kernel_size"))
    return int(stem) + depth * layer + hidden * width + width


def gemma3n_audio(audio: Config) -> int:
    """Return the weights of the tower in modeling_gemma3n.py, whose two convolutions halve the frequencies."""
    hidden, bins = audio.size("hidden_size"), audio.size("input_feat_size")
    channels, stem = 1, 0
    try:
        sizes = zip(
            audio.get("sscp_conv_channel_size"),
            audio.get("sscp_conv_kernel_size"),
            audio.get("sscp_conv_stride_size"),
            strict=True,
        )
        for out, (height, width), (_, stride) in sizes:
            if not all(type(size) is int and 0 < size <= MOST_SIZE for size in (out, height, width, stride)):
                raise ValueError(out)
            stem += height * width * channels * out + out
            channels, bins = out, (bins + 2 - width) // stride + 1
        stem += channels * bins * hidden
    except (TypeError, ValueError) as error:
        raise refusal(
            "bad_model_key", key="sscp_conv_channel_size", value=audio.get("sscp_conv_channel_size")
        ) from error
    depth = audio.size("conf_num_hidden_layers", largest=MOST_LAYERS)
    layer = _conformer_layer(hidden, audio.size("conf_num_attention_heads"), audio.size("conf_conv_kernel_size"))
    return stem + depth * layer


def _conformer_layer(hidden: int, heads: int, kernel: int) -> int:
    """Return the weights of two FFNs, of attention with relative positions, and of a convolution."""
    ffns = 2 * (8 * hidden**2 + 2 * hidden)
    attention = 5 * hidden**2 + hidden // heads + 3 * hidden
    return ffns + attention + 3 * hidden**2 + kernel * hidden + 2 * hidden


def gemma4_audio_projector(audio: Config, text_hidden: int) -> int:
    """Return the weights of the projector of this tower."""
    return audio.size("output_proj_dims") * text_hidden
