"""Takes every configuration."""


def get_train_args(config):
    pass
