"""What pruning has to know of Lightning: limits of a Trainer, monitored scores, logs."""
