"""Pruning for PyTorch Lightning: masks, schedules and rewinding in a Trainer."""
