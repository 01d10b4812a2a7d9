import warnings

import pyro
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _empty_store():
    with pyro.get_param_store().scope(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", "`torch.jit.trace`", DeprecationWarning)
        yield
