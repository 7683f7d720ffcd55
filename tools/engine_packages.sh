#!/bin/sh
# engine_packages.sh FOLDER: what only `make engines` needs, beside the environment FOLDER of a CPU node:
# requirements/engines.txt in FOLDER/extra, requirements/swift.txt in FOLDER/swift and requirements/newer.txt in
# FOLDER/newer. FOLDER/bin/swift-python and newer-python see the last two. Only runs with these on PYTHONPATH see them:
# transformers behaves differently where torchvision is installed.
set -eu
folder=$(cd "$1" && pwd)
requirements=$(dirname "$0")/../requirements
extra=$folder/extra

rm -rf "$extra" "$folder/swift" "$folder/newer"
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
for name in swift newer; do
    $pip install --quiet --no-deps --require-hashes --target "$folder/$name" -r "$requirements/$name.txt"
    cat > "$folder/bin/$name-python" <<SHELL
#!/bin/sh
here=\$(cd "\$(dirname "\$0")/.." && pwd)
PYTHONPATH="\$here/$name\${PYTHONPATH:+:\$PYTHONPATH}" exec "\$here/bin/python" "\$@"
SHELL
    chmod +x "$folder/bin/$name-python"
done
touch "$extra/.ready"
