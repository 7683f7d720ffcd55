"""Writes square pictures of noise, for benchmarks/gpu.py: `gpu_pictures.py SIDE FILE...` with a node's Python."""

import sys

if __name__ == "__main__":
    from PIL import Image

    side = int(sys.argv[1])
    for file in sys.argv[2:]:
        Image.effect_noise((side, side), 60).convert("RGB").save(file)
