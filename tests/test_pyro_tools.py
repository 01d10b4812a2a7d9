"""Pyro's tools beside SVI work on these programs: what each gives is held against the library's own
answer, or against the formula.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    ELBO,
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceMeanField_ELBO,
    Predictive,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    config_enumerate,
    infer_discrete,
)
from pyro.infer.inspect import get_model_relations
from pyro.optim import Adam
from torch import Tensor

from guides import FacetGuide, LadderGuide, MarginalGuide, ScoreFunction
from ppl_models import NVAE
from ppl_models.program import index_clusters
from tests import catalog
from tests.catalog import EACH, OBJECTIVES, PAIRS, given
from tests.pages import ROOT

pytestmark = [pytest.mark.slow(25), pytest.mark.usefixtures("an_empty_store")]

N = 12
Build = Callable[[], FacetGuide]
EIGHT = [
    catalog.two_facets,
    catalog.vade,
    catalog.vlac_enumerated,
    catalog.ivae,
    catalog.mlvae,
    catalog.nvae,
    catalog.cvae,
    catalog.vae,
]
SEVERAL_DRAWS = catalog.three_facets_full_covariance_two_draws
# Its prior is improper, and Pyro says that it cannot be drawn from.
DRAWN = [build for build in EACH if build is not catalog.autoencoder]
SUITABLE = {build: sorted(n for n in names if n[:4] == "Pyro") for build, _, names in PAIRS}
SUITABLE[catalog.vae] = SUITABLE[catalog.plain_vae]
COMPILED: dict[str, type[ELBO]] = {
    "Trace": JitTrace_ELBO,
    "TraceEnum": JitTraceEnum_ELBO,
    "TraceMeanField": JitTraceMeanField_ELBO,
}


def start(build: Build) -> tuple[FacetGuide, Tensor, dict[str, Any]]:
    """A guide, a batch and what both programs take beside it."""
    pyro.set_rng_seed(0)
    guide = build()
    x = guide.model.prepare((255 * torch.rand(N, *guide.model.x_shape)).round() / 255)
    return guide, x, {**guide.options, **given(guide, N)}


def sites(program: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Sample sites of one run, without plates."""
    nodes = poutine.trace(program).get_trace(*args, **options).nodes
    return {
        name: site
        for name, site in nodes.items()
        if site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample"
    }


def latents(guide: FacetGuide, x: Tensor, **options: Any) -> dict[str, Tensor]:
    """A draw of what is not discrete."""
    drawn = sites(guide, x, **options)
    return {name: site["value"].detach() for name, site in drawn.items() if name[0] in "zp"}


# Predictive


@pytest.mark.parametrize("build", DRAWN)
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_of_the_prior_and_of_the_posterior(build: Build, parallel: bool) -> None:
    guide, x, options = start(build)
    model = guide.model
    beside = {name: options[name] for name in model.takes} or {"size": N}
    prior = Predictive(model, num_samples=3, parallel=parallel)(**beside)
    for name, facet in model.priors.items():
        assert prior[f"z_{name}"].shape == (3, N, facet.dim)
    assert "x" not in prior or prior["x"].shape == (3, N, *model.x_shape)
    draws = Predictive(model, guide=guide, num_samples=3, parallel=parallel)(x, **options)
    several = (guide.num_samples,) if guide.num_samples > 1 else ()
    for name, facet in model.priors.items():
        assert draws[f"z_{name}"].shape == (3, *several, N, facet.dim)


def test_draws_of_the_prior_have_its_moments() -> None:
    guide, _, _ = start(catalog.vade)
    prior = guide.model.priors["cluster"]
    torch.nn.init.normal_(prior.logits)
    draws = Predictive(guide.model, num_samples=2000, parallel=True)(size=10)
    weights = prior.component().probs.detach()
    frequencies = draws["c_cluster"].flatten(0, 1).mean(0)
    assert (frequencies - weights).abs().max() < 5 * 0.5 / 20_000**0.5
    z = draws["z_cluster"].flatten(0, 1)
    assert ((z.mean(0) - weights @ prior.loc.detach()).abs() < 5 * z.std(0) / 20_000**0.5).all()


@pytest.mark.parametrize("build", EIGHT)
def test_draws_of_the_posterior_and_new_data_from_them(build: Build) -> None:
    guide, x, options = start(build)
    unobserved = poutine.uncondition(guide.model)
    draws = Predictive(unobserved, guide=guide, num_samples=400, parallel=True)(x, **options)
    assert draws["x"].shape == (400, *x.shape)
    if isinstance(guide, LadderGuide):  # what is known of its z is told for one cluster
        return
    taken = {name: options[name] for name in guide.takes}
    for name, q in guide.posterior(x, **taken).items():
        z = draws[f"z_{name}"]
        z = z[:, options["group"]] if name in guide.model.shared else z
        assert ((z.mean(0) - q.mean).abs() < 6 * q.stddev / 400**0.5).all()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("build", [catalog.ivae, catalog.nvae])
def test_labels_that_were_given_outlast_uncondition(build: Build, parallel: bool) -> None:
    """New data of a datum are of its class: with a random one they would be a third of the time."""
    guide, x, options = start(build)
    label = options["label"].clamp_min(0)
    unobserved = poutine.uncondition(guide.model)
    draws = Predictive(unobserved, guide=guide, num_samples=5, parallel=parallel)(x, label=label)
    (site,) = (name for name in draws if name.startswith("c_"))
    assert (draws[site].argmax(-1) == label).all()
    assert not (draws["x"] == x).any()


# Handlers


@pytest.mark.parametrize("dtype", [torch.long, torch.double, torch.float])
def test_one_hot_vectors_of_any_dtype_condition_on_clusters(dtype: torch.dtype) -> None:
    guide, x, _ = start(catalog.two_facets)
    third = torch.eye(4)[2]
    pyro.set_rng_seed(0)
    expected = sites(poutine.condition(guide.model, data={"c_digit": third}), x)
    pyro.set_rng_seed(0)
    found = sites(poutine.condition(guide.model, data={"c_digit": third.to(dtype)}), x)
    assert torch.equal(found["z_digit"]["value"], expected["z_digit"]["value"])
    assert torch.equal(
        found["c_digit"]["fn"].log_prob(third.to(dtype)), expected["c_digit"]["fn"].log_prob(third)
    )


def test_a_cluster_conditioned_on() -> None:
    guide, _, _ = start(catalog.two_facets)
    prior = guide.model.priors["digit"]
    third = torch.eye(4)[2]
    conditioned = poutine.condition(guide.model, data={"c_digit": third})
    found = sites(conditioned, size=4000)
    assert found["c_digit"]["is_observed"]
    assert not found["c_style"]["is_observed"]
    z = found["z_digit"]["value"].detach()
    assert ((z.mean(0) - prior.loc[2]).abs() < 5 * z.std(0) / 4000**0.5).all()


@pytest.mark.parametrize("handler", [poutine.condition, poutine.do])
def test_latents_given_are_what_is_decoded(handler: Callable[..., Any]) -> None:
    guide, _, _ = start(catalog.two_facets)
    fixed = torch.randn(N, 3)
    found = sites(handler(guide.model, data={"z_digit": fixed}), size=N)
    z = {"style": found["z_style"]["value"], "digit": fixed}
    assert torch.equal(found["x"]["fn"].mean, guide.model.decode(z).mean)
    # What is done to z says nothing of z: only a condition is scored.
    assert ("z_digit" in found and found["z_digit"]["is_observed"]) == (
        handler is poutine.condition
    )


@pytest.mark.parametrize("build", [b for b in EIGHT if b is not catalog.mlvae])
def test_rows_that_are_masked_do_not_count(build: Build) -> None:
    guide, x, options = start(build)
    guide.eval()  # no dropout, which would differ between two runs
    kept = torch.arange(N) % 3 > 0
    trace = poutine.trace(guide.model).get_trace(x, **options)
    trace.compute_log_prob()
    values = {name: site["value"] for name, site in trace.nodes.items() if name[:2] in ("z_", "c_")}
    masked = poutine.condition(poutine.mask(guide.model, mask=kept), data=values)
    found = poutine.trace(masked).get_trace(x, **options).log_prob_sum()
    scored = [site["log_prob"] for name, site in trace.nodes.items() if name in (*values, "x")]
    rows = torch.stack([each.expand(N) for each in scored]).sum(0)
    assert found.item() == pytest.approx(rows[kept].sum().item(), rel=1e-5)


# Discrete sites


@pytest.mark.parametrize("build", [*EIGHT, SEVERAL_DRAWS])
def test_config_enumerate_finds_clusters_enumerated_already(build: Build) -> None:
    guide, x, options = start(build)
    objective = OBJECTIVES["Pyro's TraceEnum"](guide)
    losses = []
    for model in (guide.model, config_enumerate(guide.model)):
        pyro.set_rng_seed(1)
        losses.append(objective.loss(model, guide, x, **options))
    assert losses[0] == losses[1]


def inferred(guide: FacetGuide, z: dict[str, Tensor], temperature: int, **options: Any) -> Any:
    """The model with clusters by :func:`infer_discrete` given latents, as sites."""
    by_number = poutine.condition(index_clusters(guide.model), data=z)
    first = -1 - guide.max_plate_nesting
    return sites(infer_discrete(by_number, first, temperature), **options)


@pytest.mark.parametrize("build", [catalog.two_facets, catalog.vade, catalog.dirichlet_weights])
def test_clusters_given_the_mean_of_z_are_those_that_the_guide_predicts(build: Build) -> None:
    """VaDE's rule: responsibilities of z at the posterior mean, Eq. 12."""
    guide, x, _ = start(build)
    for prior in guide.model.priors.values():
        torch.nn.init.normal_(prior.loc)
        prior.raw_scale.data.fill_(1.0)
    mean = {f"z_{name}": torch.as_tensor(m) for name, m in guide.embed(x).items()}
    most, probs = guide.predict(x), guide.predict_proba(x)
    best = inferred(guide, mean, 0, x=x)
    many = {name: z.repeat(1000, 1) for name, z in mean.items()}
    drawn = inferred(guide, many, 1, x=x.repeat(1000, 1))
    for name in guide.model.mixtures:
        assert (best[f"c_{name}_index"]["value"].numpy() == most[name]).all()
        assert (best[f"c_{name}"]["value"].argmax(-1).numpy() == most[name]).all()
        frequencies = drawn[f"c_{name}"]["value"].unflatten(0, (1000, N)).mean(0)
        assert abs(frequencies.numpy() - probs[name]).max() < 5 * 0.5 / 1000**0.5


@pytest.mark.parametrize("build", [SEVERAL_DRAWS, catalog.vlac_enumerated])
def test_clusters_given_draws_of_z(build: Build) -> None:
    """One cluster for all draws, each draw counted whole; a guide with a network of its own for the
    cluster may say otherwise.
    """
    guide, x, options = start(build)
    z = latents(guide, x, **options)
    best = inferred(guide, z, 0, x=x, **options)
    for name, prior in guide.model.mixtures.items():
        log_joint = prior.log_joint(z[f"z_{name}"])
        weights = prior.component().log_probs
        likelihood = (log_joint - weights).reshape(-1, N, prior.num_components).sum(0)
        expected = (likelihood + weights).argmax(-1)
        assert (best[f"c_{name}_index"]["value"].flatten() == expected).all()


def test_classes_given_x_and_draws_of_z() -> None:
    """N-VAE's class also decides what is decoded, so x counts; q(y given x) is another rule."""
    guide, x, options = start(catalog.nvae)
    assert isinstance(guide.model, NVAE)
    options |= {"known": torch.zeros(N, dtype=torch.bool)}
    z = latents(guide, x, **options)
    best = inferred(guide, z, 0, x=x, **options)["c_class_index"]["value"]
    by_name = {name.removeprefix("z_"): value for name, value in z.items()}
    scores = [
        guide.model.decode(by_name, label=torch.full((N,), y)).log_prob(x)
        for y in range(guide.model.num_classes)
    ]
    assert (best == torch.stack(scores, -1).argmax(-1)).all()


def test_one_hot_sites_are_not_for_infer_discrete() -> None:
    """Pyro takes the value's axis for a plate's; once it does not, index_clusters may go."""
    guide, x, _ = start(catalog.vade)
    with pytest.raises(ValueError, match="Invalid tensor shape"):
        infer_discrete(guide.model, first_available_dim=-2)(x)
    with pytest.raises(ValueError, match="model must be a program"):
        index_clusters(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [catalog.vade, catalog.two_facets, catalog.vlac_enumerated])
def test_a_model_with_clusters_by_number_is_the_same_model(build: Build) -> None:
    guide, x, _ = start(build)
    marginal = MarginalGuide(guide.model)
    losses = []
    for model in (guide.model, index_clusters(guide.model)):
        pyro.set_rng_seed(1)
        losses.append(TraceEnum_ELBO(max_plate_nesting=1).loss(model, marginal, x))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("build", [catalog.two_facets, catalog.vade, catalog.dirichlet_weights])
def test_marginals_of_the_clusters_are_the_responsibilities(build: Build) -> None:
    guide, x, _ = start(build)
    marginal, elbo = MarginalGuide(guide.model), TraceEnum_ELBO(max_plate_nesting=1)
    pyro.set_rng_seed(1)
    found = elbo.compute_marginals(guide.model, marginal, x)
    pyro.set_rng_seed(1)
    z = latents(marginal, x)
    for name, prior in guide.model.mixtures.items():
        expected = prior.log_joint(z[f"z_{name}"]).softmax(-1)
        assert torch.allclose(found[f"c_{name}"].probs, expected, atol=1e-5)


# Objectives


@pytest.mark.parametrize(
    ("build", "name"),
    [(build, name) for build in (*EIGHT, SEVERAL_DRAWS) for name in SUITABLE[build]],
)
def test_particles_one_by_one_and_side_by_side(build: Build, name: str) -> None:
    guide, x, options = start(build)
    single = OBJECTIVES[name](guide)
    draws = torch.tensor([single.loss(guide.model, guide, x, **options) for _ in range(60)])
    many = type(single)(
        max_plate_nesting=guide.max_plate_nesting, num_particles=400, vectorize_particles=True
    )
    many.strict_enumeration_warning = False
    side_by_side = many.loss(guide.model, guide, x, **options)
    # With the closed form of every term but one, there is little left that varies.
    error = float(draws.std()) * (1 / 60 + 1 / 400) ** 0.5 + 1e-5 * abs(side_by_side)
    assert abs(float(draws.mean()) - side_by_side) < 5 * error


def test_particles_share_their_own_draws_clusters() -> None:
    """Two draws of z in each particle: the clusters' posterior is the mean over these two."""
    guide, x, options = start(SEVERAL_DRAWS)
    with pyro.plate("particles", 5, dim=-3):
        found = sites(guide, x, **options)
    for name, prior in guide.model.mixtures.items():
        assert found[f"c_{name}"]["value"].shape[:-1] == (5, 1, N)
        log_joint = prior.log_joint(found[f"z_{name}"]["value"])
        probs = found[f"c_{name}"]["fn"].probs
        assert torch.allclose(probs, log_joint.mean(1, keepdim=True).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("build", EIGHT)
def test_an_objective_as_a_module(build: Build) -> None:
    guide, x, options = start(build)
    objective = OBJECTIVES[SUITABLE[build][0]](guide)
    module = objective(guide.model, guide)
    pyro.set_rng_seed(1)
    value = module(x, **options)
    pyro.set_rng_seed(1)
    expected = objective.differentiable_loss(guide.model, guide, x, **options)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    value.backward()
    # The guide holds the model, and each parameter is there once.
    assert len(list(module.parameters())) == len(list(guide.parameters()))
    assert all(p.grad is not None for p in guide.encoder.parameters())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (catalog.two_facets, "TraceEnum"),
        (catalog.vlac_enumerated, "TraceEnum"),
        (catalog.ivae, "TraceMeanField"),
        (catalog.mlvae, "TraceMeanField"),
        (catalog.nvae, "TraceEnum"),
        (catalog.vae, "Trace"),
    ],
)
def test_compiled_objectives(build: Build, name: str) -> None:
    """The compiled program may leave out draws that nothing reads, so its noise may be another."""
    guide, x, options = start(build)
    plain = OBJECTIVES[f"Pyro's {name}"](guide)
    compiled = COMPILED[name](max_plate_nesting=guide.max_plate_nesting, ignore_jit_warnings=True)
    compiled.strict_enumeration_warning = False
    means, errors = [], []
    for objective in (compiled, plain):
        svi = SVI(guide.model, guide, Adam({"lr": 0.0}), objective)
        losses = torch.tensor([svi.step(x, **options) for _ in range(20)])
        means.append(float(losses.mean()))
        errors.append(float(losses.std()) / 20**0.5 + 1e-5 * abs(means[-1]))
    assert abs(means[0] - means[1]) < 6 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5


@pytest.mark.parametrize("baseline", ["none", "average", "learned"])
def test_tracegraph_takes_clusters_that_are_drawn(baseline: str) -> None:
    """It reads the key "baseline" of a site, which is therefore not ours."""
    pyro.set_rng_seed(0)
    guide = LadderGuide(catalog.vlac_scored().model, discrete=ScoreFunction(baseline))
    x = torch.rand(N, 2, 3)
    svi = SVI(guide.model, guide, Adam({"lr": 1e-2}), TraceGraph_ELBO(max_plate_nesting=1))
    before = [p.detach().clone() for p in guide.classifier.parameters()]
    svi.step(x)
    after = zip(guide.classifier.parameters(), before, strict=True)
    assert any(not torch.equal(p, b) for p, b in after)


@pytest.mark.parametrize("build", [catalog.two_facets, catalog.vae, catalog.vamp])
def test_nuts_draws_the_latents(build: Build) -> None:
    guide, x, _ = start(build)
    guide.requires_grad_(False)
    options = {"marginal": True} if guide.model.mixtures else {}
    chain = MCMC(NUTS(guide.model, max_plate_nesting=1, max_tree_depth=3), 5, 5)
    chain.disable_progbar = True
    chain.run(x, **options)
    draws = chain.get_samples()
    assert {name: z.shape for name, z in draws.items()} == {
        f"z_{name}": (5, N, prior.dim) for name, prior in guide.model.priors.items()
    }


# What Pyro shows of a program


def graphs() -> Any:
    """The script that draws the pictures of the documents."""
    spec = importlib.util.spec_from_file_location("draw_graphs", ROOT / "docs/draw_graphs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# Parents of each site, in the order of the program.
GRAPHS: dict[str, dict[str, list[str]]] = {
    "mfcvae": {
        "c_style": [],
        "c_digit": [],
        "z_style": ["c_style"],
        "z_digit": ["c_digit"],
        "x": ["z_style", "z_digit"],
    },
    "vade": {"c_cluster": [], "z_cluster": ["c_cluster"], "x": ["z_cluster"]},
    "ivae": {"c_label": [], "z_label": ["c_label"], "x": ["z_label"]},
    "vlac": {
        "c_layer_1": [],
        "c_layer_2": [],
        "z_layer_1": ["c_layer_1"],
        "z_layer_2": ["c_layer_2"],
        "z_layer_3": [],
        "x": ["z_layer_1", "z_layer_2", "z_layer_3"],
    },
    "mlvae": {"z_content": [], "z_style": [], "x": ["z_content", "z_style"]},
    "nvae": {
        "c_class": [],
        "pi": ["c_class"],
        "z_shared": [],
        "z_class": [],
        "x": ["c_class", "z_shared", "z_class"],
    },
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_of_each_model(name: str) -> None:
    """As Pyro finds it, and as the committed picture has it."""
    model, options = graphs().cases()[name]
    options = options[0] if isinstance(options, list) else options
    found = get_model_relations(model, (torch.full((4, 6), 0.5),), options)
    assert found["sample_sample"] == GRAPHS[name]
    observed = {"ivae": ["c_label", "x"], "nvae": ["c_class", "x"]}
    assert found["observed"] == observed.get(name, ["x"])
    of_group = {"contents": ["z_content"], "data": ["z_style", "x"]}
    assert found["plate_sample"] == (of_group if name == "mlvae" else {"data": [*GRAPHS[name]]})
    picture = (ROOT / f"docs/graphs/{name}.svg").read_text()
    titles = set(re.findall(r'class="(?:node|edge)">\s*<title>(.*?)</title>', picture))
    edges = {f"{up}&#45;&gt;{site}" for site, ups in GRAPHS[name].items() for up in ups}
    assert titles == edges | set(GRAPHS[name])


def test_the_script_draws_them(tmp_path: Any) -> None:
    pytest.importorskip("graphviz")
    script = graphs()
    assert set(script.cases()) == set(GRAPHS)
    with warnings.catch_warnings(action="ignore"):
        script.draw("mfcvae", tmp_path)
    assert "<svg" in (tmp_path / "mfcvae.svg").read_text()
