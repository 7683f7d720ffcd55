#!/bin/sh
# engine_packages.sh FOLDER: puts requirements/engines.txt into FOLDER/extra, for the environment FOLDER of a CPU node.
# Only runs with that folder on PYTHONPATH see it: transformers behaves differently where torchvision is installed.
set -eu
folder=$1
extra=$folder/extra

rm -rf "$extra"
"$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$extra" \
    -r "$(dirname "$0")/../requirements/engines.txt"
# For GPUs, and linked against CUDA.
find "$extra/bitsandbytes" -name 'libbitsandbytes_*.so' ! -name 'libbitsandbytes_cpu.so' -delete
find "$extra/torchvision" "$extra"/torchvision.libs -name '*.so*' -delete 2> /dev/null || true
# torchvision registers meta kernels of two operators that the compiled files define.
cat >> "$extra/torchvision/extension.py" <<'PYTHON'

_without_compiled_files = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _without_compiled_files.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
touch "$extra/.ready"
