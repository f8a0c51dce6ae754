"""One fit, whatever loop drives it: masks, their zeros, rewinding and what is said. Knows no Lightning."""
