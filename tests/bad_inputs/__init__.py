"""Wrong inputs, one a row: what is called with what, which error it gets, and which words are in
that. A file for each area; :data:`ROWS` has them all.

A row names the public class, function or method that it is about and, before a colon, the kind of
its fault. A call must fail in under a second and leave objects and files as they were;
``test_bad_input.py`` sees to it.
"""

from __future__ import annotations

from tests.bad_inputs.estimators import ESTIMATORS, UNFITTED
from tests.bad_inputs.evaluation import DESCRIBING, DIAGNOSTICS, METRICS
from tests.bad_inputs.examples import EXAMPLES
from tests.bad_inputs.figures import FIGURES
from tests.bad_inputs.files import LOADING, PATHS, RESUMING
from tests.bad_inputs.guides import GUIDES
from tests.bad_inputs.models import LIKELIHOODS, MODELS, NETWORKS, PRIORS
from tests.bad_inputs.shared import Row, rows
from tests.bad_inputs.training import OBJECTIVES, RUNS, SCHEDULES

TABLES = [
    *(PRIORS, LIKELIHOODS, NETWORKS, MODELS, GUIDES, SCHEDULES, OBJECTIVES, RUNS),
    *(METRICS, DESCRIBING, DIAGNOSTICS, FIGURES),
    *(LOADING, PATHS, RESUMING, EXAMPLES, ESTIMATORS, UNFITTED),
]
ROWS: list[Row] = [row for table in TABLES for row in rows(table)]
