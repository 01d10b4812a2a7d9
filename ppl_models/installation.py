"""Whether the packages that Python finds under this library's names are this library's.

Another distribution may install a package called ``inference``, ``guides`` or ``ppl_models`` too.
Then one hides or overwrites the other; this is said at import, and not found out later.
"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions
from importlib.util import find_spec
from pathlib import Path

__all__ = ["NamesakeWarning", "check_installation"]

NAME = "facetvae"
PACKAGES = ("ppl_models", "guides", "inference")
REMEDY = "Install FacetVAE in an environment of its own, such as `python -m venv facetvae`."


class NamesakeWarning(UserWarning):
    """Another installed distribution has a package of the same name."""


def check_installation(beside: Path = Path(__file__).parent.parent) -> None:
    """Look at where Python finds the library's packages, and at who else installed them.

    :param beside: the folder that holds this library's packages.
    :raises ImportError: if Python would import another distribution's package instead of ours.
    """
    for package in PACKAGES:
        spec = find_spec(package)
        found = Path(spec.origin).parent if spec and spec.origin else None
        if found is not None and found.resolve() != (beside / package).resolve():
            ours = beside / package
            raise ImportError(f"{package!r} at {found} hides FacetVAE's, at {ours}. {REMEDY}")
    others = _others(packages_distributions())
    if not others:
        return
    named = ", ".join(f"{package!r} ({' and '.join(of)})" for package, of in others.items())
    overwritten = [package for package in others if not _is_ours(beside, package)]
    if overwritten:
        raise ImportError(
            f"another distribution has overwritten FacetVAE's package {overwritten[0]!r}; "
            f"installed by others too: {named}. {REMEDY}"
        )
    warnings.warn(
        f"other distributions install packages of FacetVAE's names: {named}. FacetVAE's are in "
        f"place, so theirs may be broken. {REMEDY}",
        NamesakeWarning,
        stacklevel=3,
    )


def _others(owners: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Distributions but ours, by package."""
    others = {package: sorted({*owners.get(package, ())} - {NAME}) for package in PACKAGES}
    return {package: of for package, of in others.items() if of}


def _is_ours(beside: Path, package: str) -> bool:
    """Whether a package's first file is the one that was installed with this library."""
    first = f"{package}/__init__.py"
    try:
        files = Distribution.from_name(NAME).files or []
    except PackageNotFoundError:
        return True  # a copy of the files that was not installed
    installed = next((file.hash for file in files if file.as_posix() == first), None)
    if installed is None:  # installed as editable
        return True
    digest = hashlib.new(installed.mode, (beside / first).read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == installed.value
