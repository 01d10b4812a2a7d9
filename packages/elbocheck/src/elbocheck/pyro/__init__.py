"""Estimators that are programs of Pyro: a model, a guide and an ELBO."""

from elbocheck.pyro.density import check_guide
from elbocheck.pyro.exact import exact_elbo
from elbocheck.pyro.program import Program
from elbocheck.pyro.ranks import calibration

__all__ = ["Program", "calibration", "check_guide", "exact_elbo"]
