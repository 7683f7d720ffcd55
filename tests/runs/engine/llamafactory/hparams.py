"""A stand-in that accepts every configuration."""

from types import SimpleNamespace


def get_train_args(config):
    return None, None, SimpleNamespace(deepspeed=None), None, None
