"""Words of the tables in docs/parity.*.md, in English and Chinese."""

from collections.abc import Mapping

PARTS: Mapping[str, tuple[str, str]] = {
    "language": ("language", "语言"),
    "experts": ("experts", "专家"),
    "router": ("router", "路由"),
    "tower": ("tower", "视觉塔"),
    "projector": ("projector", "投影层"),
    "deep_stack": ("deep stack", "deepstack"),
}
EXPLAINED: Mapping[str, tuple[str, str]] = {
    "vision_tensor": ("Vision parts with TP", "TP 下的视觉部分"),
    "micro_batch_means": ("Mean of means", "均值的均值"),
    "first_token": ("First token in pt", "预训练的首个 token"),
    "experts_padding": ("Padding with EP", "EP 的填充"),
    "fsdp1_moments": ("Resume of FSDP 1 on CPU", "CPU 上恢复 FSDP 1"),
}
"""Why a case differs from its reference: the heading in the page, which has the reason."""
COLUMNS = (
    "| Group | Plan | Loss, first → last step | Loss differs | Gradient differs | Parts, share of one rank | Why |",
    "| 组 | 方案 | loss，首步 → 末步 | loss 差异 | 梯度范数差异 | 各部分与单 rank 之比 | 原因 |",
)
