"""Write presets/profiles: the model profile of every preset, as a node with this transformers makes it.

    .venv-node/bin/python -m tools.write_profiles [PRESET ...]
    .venv-node/bin/newer-python -m tools.write_profiles [PRESET ...]

Needs the node environment (torch, transformers); weights and a GPU are not needed. Without names, it writes the presets
that have no profile of their present config. The second command is for types that only a later transformers has.
Gemma 3n also needs timm and torchvision on PYTHONPATH. To write all anew, remove the folder first.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from backend.job.model.model_profile import config_digest
from backend.job.preset_profiles import packed, preset_profile, profile_path
from backend.job.presets import models
from backend.node.model_profile.main import profile
from backend.node.model_profile.problem import ProfileError


def made_profile(key: str) -> bytes:
    """Return the content of the file of a preset's profile. Raises ProfileError."""
    return packed(profile(json.dumps(dict(models()[key].hf_config))))


def write(keys: Sequence[str]) -> bool:
    """Write the profiles of presets, and print why one cannot be made. Return whether all were written."""
    refused = False
    for key in keys:
        try:
            content = made_profile(key)
        except ProfileError as error:
            print(key, json.dumps(error.problem), file=sys.stderr, flush=True)
            refused = True
            continue
        profile_path(key).parent.mkdir(exist_ok=True)
        profile_path(key).write_bytes(content)
        print(key, len(content), "bytes", flush=True)
    return not refused


def main() -> int:
    """Write the profiles, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    outdated = [
        key for key, model in models().items() if preset_profile(key).get("digest") != config_digest(model.hf_config)
    ]
    chosen = parser.parse_args().presets
    if unknown := [key for key in chosen if key not in models()]:
        parser.error(f"no presets: {', '.join(unknown)}")
    return 0 if write(chosen or outdated) else 1


if __name__ == "__main__":
    sys.exit(main())
