#!/bin/sh
# node_environment.sh PYTHON FOLDER: builds the environment of a CPU node (torch, LLaMA-Factory) and marks it FOLDER/.ready.
# TORCH_INDEX: where CPU wheels of torch are looked for besides pip's own index; unreachable is fine.
set -eu
python=$1
folder=$2
requirements=$(dirname "$0")/../requirements
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

rm -rf "$folder/.ready" "$folder/torch_extensions"
"$python" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --upgrade pip

# Alone and first: 2.13.0+cpu sorts above 2.13.0, so a CPU wheel wins wherever one is offered.
$pip install --quiet --no-deps --retries 1 --timeout 20 --extra-index-url "$torch_index" -r "$requirements/torch.txt"
$pip install --quiet --no-deps --require-hashes -r "$requirements/node.txt"
# DeepSpeed's setup.py imports torch, so it is built in this environment; its C++ parts are built where they are first used.
DS_BUILD_OPS=0 $pip install --quiet --no-deps --no-build-isolation --require-hashes -r "$requirements/node-no-deps.txt"

"$folder/bin/python" - <<'PYTHON'
import importlib.util
from pathlib import Path

for library in (Path(importlib.util.find_spec("torchaudio").origin).parent / "lib").glob("*.so"):
    library.unlink()
PYTHON
# Said outright: left to look for one itself, DeepSpeed warns that it found no GPU.
DS_ACCELERATOR=cpu "$folder/bin/python" -W ignore -c "import llamafactory.train.tuner, megatron.core, deepspeed"
touch "$folder/.ready"
