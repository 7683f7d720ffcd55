"""A stand-in with the one template that the chaos job names."""

TEMPLATES = {"qwen3_nothink": None}
