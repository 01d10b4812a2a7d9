"""Starting values: of mixtures, from clusters of neighbors, of networks, of encoders."""
