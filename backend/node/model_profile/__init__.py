"""Profile of a model from the engine's own code. This program runs on a node, without a GPU and without weights.

    python model_profile.py [--trust-remote-code] [--no-measure] FOLDER|CONFIG|ID

It builds the full-size model on torch's meta device, which holds shapes and no data, and runs one layer of each kind.
Standard output is one JSON object: the profile, or {"problem": {"code": ...}} with a non-zero exit code.
"""
