"""Which tensors of a model are pruned."""
