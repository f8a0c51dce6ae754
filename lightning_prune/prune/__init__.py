"""The pruning engine: masks and reparameterization for plain PyTorch modules."""
