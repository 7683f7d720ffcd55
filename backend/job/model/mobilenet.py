"""The convolutional vision tower of Gemma 3n, which timm builds by its name."""

from backend.job.model.audio import gemma3n_audio
from backend.job.model.config import Config, part, refusal
from backend.job.model.defaults import defaults
from backend.job.model.operators import Mixing
from backend.job.model.vision_shape import Projection, VisionShape

ARCHITECTURE = "mobilenetv5_300m_enc"
WEIGHTS = 294_126_912
FLOPS = 871_482_949_632
SAVED_BYTES = 5_005_273_094
MOVED_BYTES = 20_106_033_292
KERNELS = 2134
"""The tower in timm 1.0.31: its weights, and of one image of 768 x 768 pixels in bf16 the operations of a forward pass,
the bytes that a backward pass needs, the bytes that all operations read and write, and their number. They were counted
on torch's meta device, operation by operation, in training mode (tests/job/test_gemma3n.py has the count of weights).
config.json has only the name of the tower, and transformers' processor resizes every image to this size."""


def gemma3n_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_gemma3n.py: the tower, and the audio tower, which is frozen with it.

    What both save is known for the vision tower alone, and only if it is trained, which it is not by default. One
    block stands for the whole tower, so that its patches are the tokens of the language model.
    """
    name = vision.get("architecture")
    if name != ARCHITECTURE or vision.get("model_args"):
        raise refusal("unsupported_model_key", key="vision_config.architecture", value=name)
    audio = Config(part(model.values, "audio_config") or {}, defaults().get("gemma3n_audio"))
    tokens, hidden = model.size("vision_soft_tokens_per_image"), vision.size("hidden_size")
    heard = audio.size("hidden_size")
    block = Mixing(
        name="convolutions",
        parameters=WEIGHTS,
        flops=FLOPS / tokens,
        saved_bytes=SAVED_BYTES / tokens,
        moved_bytes=MOVED_BYTES / tokens,
        kernels=KERNELS,
    )
    return VisionShape(
        depth=1,
        hidden=hidden,
        ffn=hidden,
        heads=1,
        channels=3,
        patch=48,
        image_patches=tokens,
        block=(block,),
        other=gemma3n_audio(audio),
        projector_norm="token",
        projector_scale=hidden,
        # The embeddings of special tokens with their norm, and the projector of the audio tower.
        projector_other=(vision.size("vocab_size") + 1) * hidden + heard * (audio.size("vocab_size") + 2 + text_hidden),
        projector=(Projection(hidden, text_hidden),),
    )
