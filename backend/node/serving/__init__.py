"""Serves models on one node for a chat. The supervisor starts it.

    serve_models.py FOLDER

FOLDER/serve.json has `idle_s`, `engine` (llamafactory or swift) and `models`, a list of `name`, `args` (the engine's
inference arguments) and `devices` (CUDA_VISIBLE_DEVICES). One process per model answers OpenAI's chat completions on a
port of 127.0.0.1, with the key in API_KEY, and writes the port to FOLDER/server.<name>.json when it is ready. The
engine's own code renders the template and generates: LLaMA-Factory's ChatModel with Hugging Face, vLLM or SGLang, or
ms-swift's TransformersEngine. The engines' web servers are not used: they need packages that training nodes often lack,
and they go on generating when a reader has left.
The program ends with status 0 when nobody has asked for `idle_s`.
"""
