"""Program on a node, read from standard input. It reads, checks and changes LLaMA-Factory's dataset_info.json.

    python - read|propose|check|write JSON --token T

It prints one line, `T{json}`.
"""
