"""FacetVAE under one name: models, guides, what trains them, and estimators for people with data.

``from facetvae import MultiFacetClustering, MFCVAE, VaDEGuide, SVIRunner`` finds each name where it
is defined: in :mod:`ppl_models`, :mod:`guides`, :mod:`inference`, :mod:`facetvae.estimators` or
:mod:`facetvae.describing`. Importing ``facetvae`` alone is fast: PyTorch and Pyro are imported with
the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from facetvae.describing import *
    from facetvae.estimators import *
    from guides import *
    from inference import *
    from ppl_models import *

try:
    __version__ = version("facetvae")  # from pyproject.toml
except PackageNotFoundError:  # a copy of the files that was not installed
    __version__ = "unknown"

_HOMES = ("ppl_models", "guides", "inference", "facetvae.estimators", "facetvae.describing")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(each for home in _HOMES for each in _import(home).__all__)
    # A module of this package is imported as it is asked for, and needs no search.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
        for home in _HOMES:
            if name in (module := _import(home)).__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'facetvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]


def _import(home: str) -> Any:
    """:raises ImportError: if another distribution's package has taken the place of ours."""
    module, ours = import_module(home), Path(__file__).parents[1].joinpath(*home.split("."))
    found = Path(module.__file__ or "").parent
    if found.resolve() != ours.resolve() or not hasattr(module, "__all__"):
        raise ImportError(
            f"the package {home!r} at {found} is another distribution's and hides FacetVAE's, at "
            f"{ours}. Install FacetVAE in an environment of its own, such as `python -m venv "
            "facetvae`."
        )
    return module
