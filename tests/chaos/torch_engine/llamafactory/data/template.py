"""The one template that the chaos job names."""

TEMPLATES = {"qwen3_nothink": None}
