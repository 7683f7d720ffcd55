"""A stand-in without chat templates."""

TEMPLATES = {}
