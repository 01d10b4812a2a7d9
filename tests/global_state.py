"""What no call may change: random streams, validation, precision and modes of the process."""

from __future__ import annotations

import logging
import os
import random
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pyro
import sympy  # noqa: F401  its import, which torch puts off, adds a filter of warnings
import torch
from matplotlib import _pylab_helpers
from pyro.poutine import runtime

# Variables that torch sets when it imports its compiler, at the first optimizer.
LATE = "TORCHINDUCTOR_"


def global_state() -> dict[str, Any]:
    """The state of the process that others rely on, by what it is."""
    return {
        "torch's random stream": torch.get_rng_state().numpy().tobytes(),
        "NumPy's random stream": repr(np.random.get_state()),  # noqa: NPY002
        "Python's random stream": random.getstate(),
        "Pyro's validation": pyro.poutine.util.is_validation_enabled(),
        "validation of Pyro's objectives": pyro.infer.util.is_validation_enabled(),
        "validation of distributions": torch.distributions.Distribution._validate_args,
        "Pyro's handlers": [type(handler).__name__ for handler in runtime._PYRO_STACK],
        "Pyro's parameters": sorted(pyro.get_param_store()),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "precision of matrix products": torch.get_float32_matmul_precision(),
        "number of torch's threads": torch.get_num_threads(),
        "NumPy's errors": np.geterr(),
        "threads": sorted(t.name for t in threading.enumerate() if not t.daemon),
        "working folder": os.getcwd(),
        "backend of matplotlib": mpl.get_backend(),
        "style of matplotlib": dict(mpl.rcParams),
        "open figures": list(_pylab_helpers.Gcf.figs),
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(LATE)},
        "filters of warnings": list(warnings.filters),
        "level of logging": logging.getLogger().level,
        "anomaly detection": torch.is_anomaly_enabled(),
        "settings of Pyro": pyro.settings.get(),
        "cuDNN": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
    }


@contextmanager
def unchanged(but: Collection[str] = ()) -> Iterator[None]:
    """Within this context the global state must not change, also if it is left by an exception.

    :param but: what may change.
    """
    before = global_state()
    try:
        yield
    finally:
        after = global_state()
        changed = [what for what in before if before[what] != after[what] and what not in but]
        assert not changed, f"a call changed {' and '.join(changed)}"
