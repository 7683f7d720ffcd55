"""No chat templates."""

TEMPLATES = {}
