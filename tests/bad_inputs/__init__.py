"""Wrong inputs, one a row: what is called with what, which error it gets, and which words are in
that. A file for each area; :data:`ROWS` has them all.

A row names the public class, function or method that it is about and, before a colon, the kind of
its fault. A call must fail in under a second and leave objects and files as they were;
``test_bad_input.py`` sees to it.
"""

from __future__ import annotations

from tests.bad_inputs.estimators import ESTIMATORS
from tests.bad_inputs.evaluation import DESCRIBING, DIAGNOSTICS, METRICS, SELECTION
from tests.bad_inputs.examples import EXAMPLES
from tests.bad_inputs.figures import FIGURES
from tests.bad_inputs.files import LOADING, RESUMING
from tests.bad_inputs.guides import GUIDES
from tests.bad_inputs.models import LIKELIHOODS, MODELS, NETWORKS, PRIORS
from tests.bad_inputs.shared import Row
from tests.bad_inputs.training import OBJECTIVES, RUNS, SCHEDULES

ROWS: list[Row] = [
    *PRIORS,
    *LIKELIHOODS,
    *NETWORKS,
    *MODELS,
    *GUIDES,
    *SCHEDULES,
    *OBJECTIVES,
    *RUNS,
    *SELECTION,
    *METRICS,
    *DESCRIBING,
    *DIAGNOSTICS,
    *FIGURES,
    *LOADING,
    *RESUMING,
    *EXAMPLES,
    *ESTIMATORS,
]
