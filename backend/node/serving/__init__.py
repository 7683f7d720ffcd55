"""Serves models of LLaMA-Factory on one node for a chat. The supervisor starts it.

    serve_models.py FOLDER

FOLDER/serve.json has `idle_s` and `models`, a list of `name`, `args` (LLaMA-Factory's inference arguments) and
`devices` (CUDA_VISIBLE_DEVICES). One process per model answers OpenAI's chat completions on a port of 127.0.0.1, with
the key in API_KEY, and writes the port to FOLDER/server.<name>.json when it is ready. LLaMA-Factory's own ChatModel
renders the template and generates, with Hugging Face, vLLM or SGLang. Its web server is not used: it needs packages
that training nodes often lack, and it goes on generating when a reader has left.
The program ends with status 0 when nobody has asked for `idle_s`.
"""
