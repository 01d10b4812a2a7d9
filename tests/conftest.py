"""Every test starts from the same random state, with Pyro's checks on; long ones run first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyro
import pytest
import torch
from filelock import FileLock
from threadpoolctl import threadpool_limits

# A second thread waits for the first, on a core that another test needs. Limits, and not only the
# environment: pytest has imported NumPy by now, for the warnings that pyproject.toml names.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes that tests start
threadpool_limits(1)
torch.set_num_threads(1)


HERE = Path(__file__).parent
THOROUGH = bool(os.environ.get("FACETVAE_THOROUGH"))


def seconds(item: pytest.Item) -> float:
    """What the ``slow`` mark says of a test, or of its file."""
    marks = [mark.args[0] for mark in item.iter_markers("slow")]
    return max(marks, default=0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first: at the end, no process waits for one that another began late. Without
    FACETVAE_THOROUGH those that ask the same of further cases are left out.
    """
    left_out = [item for item in items if not THOROUGH and item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=seconds, reverse=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.option.markexpr != "not slow":
        return
    whole, parts = [], []
    for path in sorted(HERE.rglob("test_*.py")):
        text, name = path.read_text(), path.relative_to(HERE).as_posix()
        single = re.findall(r"^@pytest\.mark\.slow.*?^def (\w+)", text, re.M | re.S)
        parts += [f"{name}::{test}" for test in single]
        whole += [name] if "mark.slow" in text and not single else []
    terminalreporter.section("left out, being slow (make test runs them)")
    for name in whole + parts:
        terminalreporter.line(f"tests/{name}")


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    pyro.set_rng_seed(int(os.environ.get("FACETVAE_TEST_SEED", "0")))
    with pyro.validation_enabled(True):
        yield


@pytest.fixture(autouse=True)
def no_global_parameters() -> Iterator[None]:
    """Nothing may enter Pyro's global parameter store: two models in one process must not meet
    there.
    """
    yield
    assert not list(pyro.get_param_store()), "a test left parameters in Pyro's global store"


@pytest.fixture
def an_empty_store() -> Iterator[None]:
    """For programs of Pyro's own kind, whose parameters are in its global store."""
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def shapes_drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the drawing of :mod:`lab.protocols.shapes`, made once for all processes."""
    from lab.protocols import shapes

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch, FileLock(folder / "shapes.lock"):
        patch.setenv("XDG_CACHE_HOME", str(folder))
        shapes.draw(shapes.factor_grid()[:1])
    return folder


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """Where MNIST lies, for the few tests that need it; they skip where it is not found."""
    root = Path(os.environ.get("FACETVAE_DATA", "data"))
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip(
            "MNIST not found: set FACETVAE_DATA to a folder that holds it in torchvision's layout"
        )
    return root
