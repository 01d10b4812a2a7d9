"""The documentation site: ``make docs`` builds it into docs/_build/html, and needs no network."""

from __future__ import annotations

import importlib
import sys
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE.parent),
    str(HERE),
]  # the code beside these pages, wherever another copy is installed

from api_pages import public_paths, resolved, write_pages  # noqa: E402

INCLUDED = {
    "lab/RESULTS.md": "full_results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "lab/README.md": "laboratory.md",
}
METADATA = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]

project = "FacetVAE"
version = release = METADATA["version"]
extensions = ["sphinx.ext.autodoc", "myst_parser", "mathml"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"FacetVAE {release}"
html_math_renderer = "mathml"
html_static_path = ["formulas.css"]
html_css_files = ["formulas.css"]
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}

myst_heading_anchors = 3

# Beyond that of __init__, a class is told by its own docstring; torch's would be said of every
# network.
autodoc_default_options = {"members": True, "show-inheritance": True, "no-value": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

# A link to a name of ours that leads nowhere is an error; names of others have no pages here to
# lead to.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!(ppl_models|guides|inference|facetvae)\.).*"),
    # In signatures, and not public.
    (
        r"py:class",
        r"inference\.(callbacks\._EveryEpochs"
        r"|checkpoints\.periodic\.CheckpointWriter"
        r"|distributed\.T|estimators\.base\.Fitted|objectives\.loss\.Suitable)"
        r"|ppl_models\.(likelihood_base\.Built|categories\.CodedLikelihood)",
    ),
]


def find_by_another_path(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
):
    """Follow a link that names something by the module that defines it, by any other path, or by no
    path at all.
    """
    named = node.get("reftarget", "")
    target = resolved(named, app.public_paths) or app.public_names.get(named)
    if node.get("refdomain") != "py" or target == named:
        return None
    if target is None:
        return contnode if is_ours(named) else None
    python = env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)


def is_ours(named: str) -> bool:
    """Whether a name that is not public exists: it is shown, and leads nowhere."""
    module, _, rest = named.rpartition(".")
    while module and find_spec(module.split(".")[0]):
        try:
            value = importlib.import_module(module)
        except ImportError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}"
            continue
        with suppress(AttributeError):
            return attrgetter(rest)(value) is not None
        return False
    return False


def stay_on_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to files beside the code, as GitHub needs them, to the pages that include these
    files.
    """
    for file, page in INCLUDED.items():
        source[0] = source[0].replace(f"](../{file}", f"]({page}")


def leave_out(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn makes members of its estimators: it tells of itself, by links
    into its own pages.
    """
    return True if str(getattr(value, "__module__", "")).startswith("sklearn.") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", leave_out)
    app.connect("source-read", stay_on_the_site)
    app.public_paths = public_paths()
    app.public_names = {path.rsplit(".", 1)[1]: path for path in app.public_paths.values()}
    write_pages(HERE / "api")
    app.connect("missing-reference", find_by_another_path)
