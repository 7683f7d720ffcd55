"""Stands in for PyYAML: the stand-in engine reads nothing of its configuration."""


def safe_load(file):
    return {}
