"""transformers' table of architectures, with those of the scenes alone."""

CONFIG_MAPPING = {"qwen3": None}
