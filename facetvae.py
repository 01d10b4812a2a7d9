"""FacetVAE under one name, and a check that its packages are not hidden by others' of their names.

``from facetvae import MFCVAE, VaDEGuide, SVIRunner, MultiFacetClustering`` imports what
``ppl_models``, ``guides``, ``inference`` and ``inference.estimators`` export; where another
distribution's package hides one of these, it says so.
"""

import ppl_models  # which checks the installation before anything else is imported
import guides
import inference
from guides import *
from inference import *
from inference import __version__ as __version__
from inference import estimators
from inference.estimators import *
from ppl_models import *

__all__ = sorted({*ppl_models.__all__, *guides.__all__, *inference.__all__, *estimators.__all__})
