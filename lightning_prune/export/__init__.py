"""What zeros are worth: files and models made of pruned ones."""
