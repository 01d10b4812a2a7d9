"""What a facet is about: its clusters in the words of the data's own columns."""

from facetvae.describing.description import FacetClusters, FacetDescription, describe_clusters

__all__ = ["FacetClusters", "FacetDescription", "describe_clusters"]
