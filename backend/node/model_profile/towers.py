"""Runs of the towers that do not run with text: images and audio."""

from __future__ import annotations

import inspect
from typing import Any

from .parts import Kind, Tower


def owners_of(model: Any, tower: Tower, others: list[str]) -> list[Any]:
    """Return the modules around a tower that contain no tower of `others`, largest first."""
    parts = tower.name.split(".")
    names = [".".join(parts[:length]) for length in range(1, len(parts))]
    return [
        model.get_submodule(name) for name in names if not any(f"{other}.".startswith(f"{name}.") for other in others)
    ]


def tower_calls(owner: Any) -> int:
    """Return the number of ways to call a tower."""
    return len(_ways(owner))


def call_tower(owner: Any, way: int, batch: int, length: int) -> Any:
    """Call a tower with `batch` images of `length` patches, or with clips of audio."""
    return _ways(owner)[way](owner, list(inspect.signature(owner.forward).parameters), batch, length)


def _ways(owner: Any) -> list[Any]:
    names = list(inspect.signature(owner.forward).parameters)
    ways: list[Any] = []
    if any("grid" in name for name in names):
        ways.append(_patches)
    if any("pixel_values" in name for name in names):
        ways.append(_images)
    if "input_features" in names or "input_values" in names or "audio_features" in names:
        ways += [_sound, _sound_packed]
    return ways


def _patches(owner: Any, names: list[str], batch: int, length: int) -> Any:
    """Call a tower that takes the patches of all images in one row, and their grids."""
    import torch

    height = 8
    grid = torch.tensor([[1, height, length // height]] * batch)
    dtype = next(owner.parameters()).dtype
    rows = torch.empty(batch * length, _patch_width(owner), device="meta", dtype=dtype)
    name = next(name for name in names if "grid" in name)
    if grid.shape[1] == 3 and name.endswith("hws"):
        grid = grid[:, 1:]
    return owner(rows, **{name: grid})


def _patch_width(owner: Any) -> int:
    """Return the elements of one patch: the inputs of the first projection or convolution."""
    for module in owner.modules():
        kind = type(module).__name__
        if kind.startswith("Conv"):
            width = module.in_channels
            for size in module.kernel_size:
                width *= size
            return int(width)
        if kind == "Linear":
            return int(module.in_features)
    raise ValueError("a tower without projections")


def _images(owner: Any, names: list[str], batch: int, length: int) -> Any:
    import torch

    config = owner.config
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    dtype = next(owner.parameters()).dtype
    pixels = torch.empty(batch, getattr(config, "num_channels", 3), height, width, device="meta", dtype=dtype)
    options: dict[str, Any] = {}
    if "image_sizes" in names:
        options["image_sizes"] = torch.tensor([[height, width]] * batch)
    if "aspect_ratio_ids" in names:
        tiles = config.max_num_tiles
        pixels = pixels[:, None, None].expand(batch, 1, tiles, *pixels.shape[1:])
        options["aspect_ratio_ids"] = torch.ones((batch, 1), dtype=torch.long)
        options["aspect_ratio_mask"] = torch.ones((batch, 1, tiles), dtype=torch.long)
    if "pixel_position_ids" in names:
        side = height // config.patch_size
        yx = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(1, -1, 2)
        options["pixel_position_ids"] = yx.expand(batch, -1, -1)
        pixels = torch.empty(batch, side * side, _patch_width(owner), device="meta", dtype=dtype)
    return owner(pixels, **options)


def _sound(owner: Any, names: list[str], batch: int, length: int) -> Any:
    """Call an encoder of spectrograms of a fixed length (Whisper's)."""
    import torch

    config = owner.config
    bins = _first(config, "num_mel_bins", "input_feat_size", "feature_size", "input_size", "n_mels")
    frames = 2 * _first(config, "max_source_positions", "max_position_embeddings")
    dtype = next(owner.parameters()).dtype
    return owner(torch.empty(batch, bins, frames, device="meta", dtype=dtype))


def _sound_packed(owner: Any, names: list[str], batch: int, length: int) -> Any:
    """Call an encoder that takes the frames of all clips in one row, and their lengths."""
    import torch

    config = owner.config
    bins = _first(config, "num_mel_bins", "input_feat_size", "feature_size", "input_size", "n_mels")
    dtype = next(owner.parameters()).dtype
    # A window of the encoder is 100 to 200 frames; its convolutions halve them.
    frames = 2 * length
    options: dict[str, Any] = {}
    for name, value in (("feature_lens", frames), ("aftercnn_lens", length)):
        if name in names:
            options[name] = torch.full((batch,), value)
    if options:
        return owner(torch.empty(bins, batch * frames, device="meta", dtype=dtype), **options)
    rows = torch.empty(batch, frames, bins, device="meta", dtype=dtype)
    mask = next((name for name in names[1:] if "mask" in name), None)
    return owner(rows, **({mask: torch.zeros(batch, frames, dtype=torch.bool)} if mask else {}))


def _first(config: Any, *names: str) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ValueError("no setting of " + ", ".join(names))


def call_alone(kind: Kind, batch: int, length: int) -> Any:
    """Call a layer with hidden states only."""
    import torch

    dtype = next(kind.layer.parameters()).dtype
    hidden = torch.empty(batch, length, kind.hidden, device="meta", dtype=dtype)
    args, kwargs = kind.plain_call
    return kind.layer(
        *[hidden if value is Ellipsis else value for value in args],
        **{name: hidden if value is Ellipsis else value for name, value in kwargs.items()},
    )
