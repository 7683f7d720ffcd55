"""Profiles of models, and the same figures of real models on CPU. It runs in the node environment.

Standard input is {"models": {name: folder}, "bad": {name: place}}. Standard output is {"profiles": {name: profile},
"real": {name: [parameters, [saved bytes of each kind]]}, "problems": {name: code}}. Real models have weights, and use
nothing of the profile but its list of kinds.
"""

import json
import sys
import weakref

import torch
import transformers

from backend.node.model_profile.main import profile
from backend.node.model_profile.parts import find_towers
from backend.node.model_profile.problem import ProfileError

BATCH, LENGTH = 2, 128


def main() -> None:
    torch.manual_seed(0)
    values = json.load(sys.stdin)
    answers = {
        "profiles": {name: profile(folder) for name, folder in values["models"].items()},
        "real": {name: real(folder) for name, folder in values["models"].items()},
        "problems": {name: problem(model_place) for name, model_place in values["bad"].items()},
    }
    print(json.dumps(answers))


def problem(folder):
    try:
        profile(folder)
    except ProfileError as error:
        return error.problem["code"]


def real(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    composite = type(config) in transformers.AutoModelForImageTextToText._model_mapping
    automatic = transformers.AutoModelForImageTextToText if composite else transformers.AutoModelForCausalLM
    model = automatic.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").train()
    saved = {}
    _, kinds = find_towers(model, lambda name: "")
    for index, kind in enumerate(kinds):
        kind.layer.forward = counted(kind.layer, kind.layer.forward, saved, index)
    ids = torch.randint(0, config.get_text_config().vocab_size - 50, (BATCH, LENGTH))
    extra = {"token_type_ids": torch.zeros_like(ids)} if config.model_type.startswith("gemma3") else {}
    model(input_ids=ids, use_cache=False, **extra)
    return [model.num_parameters(), [saved.get(index) for index in range(len(kinds))]]


def counted(layer, forward, saved, index):
    def run(*args, **kwargs):
        own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
        values, hidden = [*args, *kwargs.values()], None
        for value in values:
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
                hidden = value
                break
        others = {t.untyped_storage().data_ptr() for t in tensors(values) if t is not hidden} | own
        stored = []

        def pack(tensor):
            if tensor.untyped_storage().data_ptr() not in others:
                stored.append(weakref.ref(tensor))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = forward(*args, **kwargs)
        # The saved tensors of a branch without an output are freed.
        storages = [tensor.untyped_storage() for tensor in (reference() for reference in stored) if tensor is not None]
        saved.setdefault(index, sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))
        return out

    return run


def tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


if __name__ == "__main__":
    main()
