"""The models with scikit-learn's interface; settings not given are chosen from the data."""

from inference.estimators.classifier import SemiSupervisedClassifier
from inference.estimators.clustering import FacetClustering, MultiFacetClustering
from inference.estimators.grouped import ContentStyleTransformer
from inference.estimators.starts import UnstableFacetWarning

__all__ = [
    "ContentStyleTransformer",
    "FacetClustering",
    "MultiFacetClustering",
    "SemiSupervisedClassifier",
    "UnstableFacetWarning",
]
