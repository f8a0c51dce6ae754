"""How masks and tensors are computed: arrays in, arrays out. Internal."""
