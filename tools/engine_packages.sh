#!/bin/sh
# engine_packages.sh FOLDER: what only `make engines` needs, beside the environment FOLDER of a CPU node:
# requirements/engines.txt in FOLDER/extra, requirements/swift.txt in FOLDER/swift, and FOLDER/bin/swift-python that sees
# the latter. Only runs with these on PYTHONPATH see them: transformers behaves differently where torchvision is installed.
set -eu
folder=$(cd "$1" && pwd)
requirements=$(dirname "$0")/../requirements
extra=$folder/extra

rm -rf "$extra" "$folder/swift"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --no-deps --require-hashes --target "$extra" -r "$requirements/engines.txt"
# For GPUs, and linked against CUDA.
find "$extra/bitsandbytes" -name 'libbitsandbytes_*.so' ! -name 'libbitsandbytes_cpu.so' -delete
find "$extra/torchvision" "$extra"/torchvision.libs -name '*.so*' -delete 2> /dev/null || true
# torchvision registers meta kernels of two operators that the compiled files define.
cat >> "$extra/torchvision/extension.py" <<'PYTHON'

_without_compiled_files = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _without_compiled_files.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
$pip install --quiet --no-deps --require-hashes --target "$folder/swift" -r "$requirements/swift.txt"
cat > "$folder/bin/swift-python" <<'SHELL'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/swift${PYTHONPATH:+:$PYTHONPATH}" exec "$here/bin/python" "$@"
SHELL
chmod +x "$folder/bin/swift-python"
touch "$extra/.ready"
