"""The models behind scikit-learn's interface, with what is not given chosen from the data."""

from inference.estimators.classifier import SemiSupervisedClassifier
from inference.estimators.clustering import FacetClustering, MultiFacetClustering
from inference.estimators.grouped import ContentStyleTransformer

__all__ = [
    "ContentStyleTransformer",
    "FacetClustering",
    "MultiFacetClustering",
    "SemiSupervisedClassifier",
]
