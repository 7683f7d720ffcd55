"""The same tiny training under every engine and plan: losses and gradients by part, beside those of one rank."""
