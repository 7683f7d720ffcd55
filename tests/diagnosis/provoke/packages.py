"""Failures of packages, their versions and their compiled parts.

Folders under `packages` of the work folder have what the node environment lacks, each by `pip install --no-deps
--target`: wandb with its dependencies, datasets-4.4 (4.4.1), torchaudio (2.11.0 with its compiled parts), torchvision
(0.28.0 without them; torchvision-cuda with them), bitsandbytes (0.50.2), swift (requirements/swift.txt), and
mcore_adapter (the source folder in github.com/alibaba/ROLL).
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.diagnosis.provoke.gang import Cause, Gang
from tests.diagnosis.provoke.model_and_data import edit, with_model

_REMOTE_CODE = "from transformers import Qwen3ForCausalLM\n{}\n\n\nclass TinyForCausalLM(Qwen3ForCausalLM):\n    pass\n"
_KERNEL = """
#include <torch/extension.h>
__global__ void scale(float* x) { x[threadIdx.x] *= 2; }
"""
_OTHER_TORCH = """
void _ZN3c104cuda9SetDeviceEi(int device);
void* PyInit_flash_attn_2_cuda(void) { _ZN3c104cuda9SetDeviceEi(0); return 0; }
"""
_BUILD = """
def train(folder, rank):
    from torch.utils.cpp_extension import load

    load("scale", sources=[f"{folder}/scale.cu"], build_directory=folder, verbose=True)
"""


def _build_for_other_torch(gang: Gang) -> None:
    source, target = gang.path("flash.c"), gang.path("flash_attn_2_cuda.so")
    source.write_text(_OTHER_TORCH)
    subprocess.run(["/usr/bin/gcc", "-shared", "-fPIC", "-o", target, source], check=True)
    gang.variables["PYTHONPATH"] = str(gang.run)


def _remote_code(line: str) -> dict[str, object]:
    """Return the fields of a cause whose model brings its own code with `line`."""

    def change(folder: Path) -> None:
        (folder / "modeling_tiny.py").write_text(_REMOTE_CODE.format(line))
        names = {"AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM"}
        edit(folder / "config.json", auto_map=names, architectures=["TinyForCausalLM"])

    return {"prepare": with_model(change), "keys": {"trust_remote_code": True}}


PACKAGES: Mapping[str, Cause] = {
    "module-missing-mcore-adapter": Cause(
        category="module_missing",
        how="The job runs on Megatron, and mcore_adapter is not installed.",
        engine="llamafactory-megatron",
        keys={"tensor_model_parallel_size": None, "pipeline_model_parallel_size": None},
    ),
    "module-missing-flash-attn": Cause(
        category="module_missing",
        how="The model's own code imports flash_attn, which is not installed.",
        **_remote_code("import flash_attn"),
    ),
    "module-missing-liger": Cause(
        category="module_missing",
        how="The job turns the Liger kernels on, and liger_kernel is not installed.",
        keys={"enable_liger_kernel": True},
    ),
    "module-missing-bitsandbytes": Cause(
        category="module_missing",
        how="The job quantises to 4 bits, and bitsandbytes is not installed.",
        values={"training.method": "qlora"},
    ),
    "module-missing-transformer-engine": Cause(
        category="module_missing",
        how="ms-swift's Megatron was started without Transformer Engine.",
        paths=("packages/swift",),
        program="""
def train(folder, rank):
    from swift import megatron

    megatron.megatron_sft_main(["--model", "Qwen/Qwen3-8B"])
""",
        packages=("torch", "megatron-core"),
    ),
    "undefined-symbol": Cause(
        category="abi_flash_attn",
        how="A module with the name of flash-attn's compiled part needs a symbol that this torch does not have.",
        prepare=_build_for_other_torch,
        program="""
def train(folder, rank):
    import torch

    torch.distributed.init_process_group("gloo")
    import flash_attn_2_cuda
""",
        packages=("torch",),
    ),
    "package-version-moved-name": Cause(
        category="package_version",
        how="The model's own code imports a name that newer releases of transformers do not have.",
        **_remote_code("from transformers.models.llama.modeling_llama import LlamaFlashAttention2"),
    ),
    "package-version-datasets-node1": Cause(
        category="package_version",
        how="Node 1 has datasets 4.4.1, which LLaMA-Factory refuses.",
        node=1,
        rank=1,
        node_environment={1: {"PYTHONPATH": "$WORK/packages/datasets-4.4"}},
        packages=("torch", "transformers", "llamafactory", "datasets"),
    ),
    "torchvision-mismatch-node1": Cause(
        category="torchvision_mismatch",
        how="torchvision on node 1 was built for a torch with CUDA.",
        node=1,
        rank=1,
        node_environment={1: {"PYTHONPATH": "$WORK/packages/torchvision-cuda"}},
    ),
    "torchaudio-mismatch-node1": Cause(
        category="torchaudio_mismatch",
        how="torchaudio 2.11 on node 1 has compiled parts that do not fit torch 2.13.",
        node=1,
        rank=1,
        node_environment={1: {"PYTHONPATH": "$WORK/packages/torchaudio"}},
        packages=("torch", "torchaudio", "llamafactory"),
    ),
    "wandb-login": Cause(
        category="wandb_login",
        how="The run reports to wandb, and nobody is logged in.",
        keys={"report_to": "wandb"},
        paths=("packages/wandb",),
        node=0,
        rank=0,
        environment={"HOME": "$RUN"},
    ),
    "no-cuda-home": Cause(
        category="no_cuda_home",
        how="A CUDA extension is built where no CUDA toolkit is found.",
        program=_BUILD,
        prepare=lambda gang: [(folder / "scale.cu").write_text(_KERNEL) for folder in gang.folders] and None,
        environment={"PATH": "/opt/nothing:/usr/bin:/bin", "CUDA_HOME": ""},
        packages=("torch", "ninja"),
    ),
    "op-build-header": Cause(
        category="op_build",
        how="A C++ extension includes a CUDA header that is not there.",
        program=_BUILD.replace("scale.cu", "scale.cpp"),
        prepare=lambda gang: (
            [(folder / "scale.cpp").write_text("#include <cusparse.h>\n" + _KERNEL[:30]) for folder in gang.folders]
            and None
        ),
        packages=("torch", "ninja"),
    ),
    "op-build-no-compiler": Cause(
        category="op_build",
        how="DeepSpeed builds its shared memory extension, and the compiler is not there.",
        engine="llamafactory-zero2",
        environment={"CXX": "g++-14", "TORCH_EXTENSIONS_DIR": "$RUN/extensions"},
        packages=("torch", "deepspeed"),
    ),
}
