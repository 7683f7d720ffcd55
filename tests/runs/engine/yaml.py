"""A stand-in for PyYAML. The stand-in engine reads nothing of its configuration."""


def safe_load(file):
    return {}
