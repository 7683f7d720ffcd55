"""The sizes of a vision or audio tower, and of the projector behind it."""

from dataclasses import dataclass
from typing import Literal

from backend.job.model.operators import NormWeights, Operator


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix between a vision tower and the language model."""

    inputs: int
    outputs: int
    bias: bool = False
    gated: bool = False
    """Whether a second matrix of this size gates its output."""
    modules: tuple[str, ...] = ()
    """Names of its modules, if other modules of the model have them too."""
    convolves: bool = False
    """Whether it is a convolution, which gets no adapter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectorLayer:
    """A layer of a projector that gradient checkpointing recomputes."""

    operators: tuple[Operator, ...]
    hidden: int
    """Elements of its input, which a checkpoint keeps."""
    inputs: int = 0
    """Elements besides it that a checkpoint keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionShape:
    """A tower with its projector to the language model. It sees images; if it hears, an image is a clip of audio."""

    depth: int
    hidden: int
    ffn: int
    heads: int
    channels: int
    patch: int
    """Pixels along an edge of a patch."""
    projector: tuple[Projection, ...]
    kv_heads: int = 0
    """Heads of keys and values; 0 for as many as of queries."""
    temporal_patch: int = 1
    """Frames of a patch; a still image is repeated to fill them."""
    merge: int = 1
    """Patches along an edge that become one language token."""
    window: int = 0
    """Patches that attend to each other, if an image is cut into tiles; 0 for all patches of an image."""
    joins_images: bool = False
    """Whether the patches of all images of a micro-batch attend to each other."""
    pooled: int = 0
    """Patches that become one language token, if not those of a square (audio); 0 for merge x merge."""
    image_patches: int = 0
    """Patches of an image, of any size; 0 if they follow from its pixels."""
    tiles: int = 1
    """Tiles of `image_patches` that the processor makes of an image at most, if the engine lets it cut images."""
    tiles_variable: str = ""
    """The environment variable in which ms-swift looks for this number, without the view of the whole image."""
    positions: int = 0
    """Learned positions of patches; 0 if the tower uses only rotary positions."""
    class_token: bool = False
    """Whether a learned token with a position of its own precedes the patches."""
    deep_stack: int = 0
    """Projectors that feed the first decoder layers, besides the main one."""
    gated: bool = False
    """SwiGLU instead of GELU."""
    norm: NormWeights = "scale_and_shift"
    patch_bias: bool = False
    qkv_bias: bool = True
    key_bias: bool = True
    """Whether the keys have the bias that queries and values have."""
    qk_norm: bool = False
    """Whether an RMSNorm follows the projection of queries, and one that of keys, over all heads."""
    output_bias: bool = True
    ffn_bias: bool = True
    projector_norm: Literal["none", "patch", "token"] = "none"
    """The norm before the projector: of every patch, or of every language token."""
    projector_scale: int = 0
    """Weights of this norm; 0 if they are those of a norm of the blocks."""
    projector_operators: tuple[Operator, ...] = ()
    """Operators of the projector, for every language token, if it is no sequence of matrices; `projector` is empty
    then."""
    projector_layers: tuple[ProjectorLayer, ...] = ()
    """Those of `projector_operators` that gradient checkpointing recomputes if they are trained."""
    projector_other: int = 0
    """Weights of the projector besides its matrices and its norm, or of the projector of a second tower."""
    block_other: int = 0
    """Weights of a block that no matrix or norm has."""
    block: tuple[Operator, ...] = ()
    """Operators of a block, for every patch, if the tower is no vision transformer; patches have no layer then."""
    joins_after: int = 0
    """Blocks after which a layer of windows of 2 x 2 patches makes each window one patch (MiniCPM-V 4.6); 0 if there is
    no such layer."""
    stem: tuple[Operator, ...] = ()
    """Operators of the patch embedding, if it is not one matrix."""
    other: int = 0
    """Weights of the tower besides patches, positions and blocks, or of a second tower that is frozen with it."""
    kept: int = 0
    """Elements of a patch that the backward pass needs besides those of blocks, if the tower is trained."""
    joined_qkv: bool = True
    """Whether one matrix projects queries, keys and values."""
    output_module: str = "proj"
    """Name of the matrix after the attention of a block."""
    ffn_modules: tuple[str, str] = ("fc1", "fc2")
    """Names of the matrices of the FFN of a block, if it is not gated."""
    merger_linears: Literal["own_names", "names_of_blocks", "none"] = "own_names"
    """The names of the projector's nn.Linear modules: their own, or those of modules of the blocks. none: its matrix is
    a bare parameter."""
    checkpointed: bool = True
    """Whether gradient checkpointing reaches the blocks."""
    patches_need: bool = False
    """Whether patches get a gradient if adapters are trained with gradient checkpointing, so that a frozen tower has a
    backward pass too: transformers' enable_input_require_grads, which PEFT calls, finds the patch embedding."""
    keys: int = 0
    """Vectors of an image that cross-attention reads, if its image is one token of the language model (Mllama); 0 if
    patches become tokens."""

    @property
    def block_modules(self) -> frozenset[str]:
        """Return the names of a block's matrices."""
        attention = ("qkv",) if self.joined_qkv else ("q_proj", "k_proj", "v_proj")
        ffn = ("gate_proj", "up_proj", "down_proj") if self.gated else self.ffn_modules
        return frozenset((*attention, self.output_module, *ffn)) if self.depth and not self.block else frozenset()

    @property
    def projector_modules(self) -> frozenset[str]:
        """Return the names of the projector's matrices that other parts have, too."""
        return frozenset(name for matrix in self.projector for name in matrix.modules)

    @property
    def patches_per_token(self) -> int:
        """Return the patches that become one token of the language model, if `keys` is 0."""
        return self.pooled or self.merge**2

    def image_tokens(self, patches: int) -> int:
        """Return the tokens of the language model for an image of so many patches."""
        return 1 if self.keys else patches // self.patches_per_token
