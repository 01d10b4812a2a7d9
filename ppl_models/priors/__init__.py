"""Priors of one facet's latent vector."""
