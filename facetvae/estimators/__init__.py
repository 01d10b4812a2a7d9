"""The models with scikit-learn's interface; settings not given are chosen from the data."""

from facetvae.estimators.classifier import SemiSupervisedClassifier
from facetvae.estimators.clustering import MultiFacetClustering
from facetvae.estimators.grouped import ContentStyleTransformer
from facetvae.estimators.starts import UnstableFacetWarning

__all__ = [
    "ContentStyleTransformer",
    "MultiFacetClustering",
    "SemiSupervisedClassifier",
    "UnstableFacetWarning",
]
