"""Tensors that are split over ranks. Internal."""
