"""A model of one's own whose decoder reads an inferred cluster, against sums and integrals written
out here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from torch import Tensor

from facetvae.explorer.explorer import Explorer
from guides import AmortizedGuide, GumbelSoftmax, MarginalGuide, ScoreFunction, VaDEGuide
from inference import SVIRunner, warm_start
from inference.evaluation import exact_objective, log_importance_weights
from inference.figures import cluster_samples, facet_swaps
from inference.objectives.loss import Loss
from ppl_models import GaussianMixture, Normal, Prior, SharedMLP, StandardNormal
from ppl_models.base import FacetModel
from ppl_models.networks.base import concatenate

K, D = 3, 4


class ClusterVAE(FacetModel):
    """c ~ Cat(pi), z given c ~ Normal(mu_c, s_c), style ~ Normal(0, I), x given z, c, style."""

    decoded_clusters = ("kind",)
    suitable_guide = "AmortizedGuide"

    def forward(self, x: Tensor | None = None, *, size: int = 1, num_samples: int = 1) -> Tensor:
        z = {}
        with self.plate(x, size):
            c = pyro.sample("c_kind", self.mixtures["kind"].component())
            with self.draws(num_samples):
                for name, prior in self.priors.items():
                    component = c if name == "kind" else None
                    z[name] = pyro.sample(f"z_{name}", prior.latent(component))
                return pyro.sample("x", self.decode(z, c_kind=c), obs=x)


def model(style: bool = False, seed: int = 0) -> ClusterVAE:
    pyro.set_rng_seed(seed)
    facets: dict[str, Prior] = {"kind": GaussianMixture(K, 1, scale=1.0)}
    facets |= {"style": StandardNormal(1)} if style else {}
    made = ClusterVAE((D,), facets, Normal(0.5), SharedMLP((8,), activation="tanh")).double()
    torch.nn.init.normal_(made.mixtures["kind"].loc)
    torch.nn.init.normal_(made.mixtures["kind"].logits)
    return made


X = torch.randn(5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def log_joint(made: ClusterVAE, z: np.ndarray, style: np.ndarray | None = None) -> np.ndarray:
    """log p(x, z, c) of the program, by NumPy: ``[..., B] -> [K, ..., B]``."""
    prior = made.mixtures["kind"]
    loc, scale = (each.detach().numpy()[:, 0] for each in (prior.loc, prior.scale))
    log_pi = prior.logits.detach().log_softmax(-1).numpy()
    found = []
    for k in range(K):
        one_hot = torch.eye(K, dtype=torch.float64)[k].expand(*z.shape, K)
        inputs = [torch.cat([torch.as_tensor(z)[..., None], one_hot], -1)]
        inputs += [torch.as_tensor(style)[..., None]] if style is not None else []
        mean = made.decoder(inputs, None).detach().numpy()
        density = norm(mean, 0.5).logpdf(X.numpy()).sum(-1)
        density = density + log_pi[k] + norm(loc[k], scale[k]).logpdf(z)
        found.append(density if style is None else density + norm.logpdf(style))
    return np.stack(found)


@pytest.mark.parametrize("style", [False, True])
def test_log_joint_sums_the_cluster_out(style: bool) -> None:
    made = model(style)
    z = torch.randn(2, 7, 5, dtype=torch.float64)
    latents = {"kind": z[0].unsqueeze(-1)} | ({"style": z[1].unsqueeze(-1)} if style else {})
    found = made.log_joint(X, latents).detach().numpy()
    expected = logsumexp(log_joint(made, z[0].numpy(), z[1].numpy() if style else None), 0)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("conditional", [False, True])
def test_the_exact_objective_is_an_integral(conditional: bool) -> None:
    """-sum_c q(c given x) E_q(z given x, c) [log p(x, z, c) - log q(z) - log q(c)], on a grid."""
    made = model()
    guide = AmortizedGuide(made, conditional=conditional).double()
    for shift in guide.shifts.values():
        torch.nn.init.normal_(shift.weight)
    head = guide.heads(X)["kind"]
    log_q_c = guide.cluster_logits("kind", head).log_softmax(-1).detach().numpy()  # [B, K]
    grid = np.linspace(-30, 30, 6001)
    z = np.repeat(grid[:, None], len(X), 1)
    joint, loss = log_joint(made, z), 0.0
    for k in range(K):
        c = torch.eye(K, dtype=torch.float64)[k].expand(len(X), K)
        q = guide.latent_given("kind", head, c)
        loc, scale = (each.detach().numpy()[:, 0] for each in (q.mean, q.stddev))
        log_q = norm(loc, scale).logpdf(z)
        inner = (np.exp(log_q) * (joint[k] - log_q)).sum(0) * (grid[1] - grid[0])
        loss -= (np.exp(log_q_c[:, k]) * (inner - log_q_c[:, k])).mean()
    assert float(exact_objective(made, guide, X, 80).detach()) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("style", [False, True])
def test_the_objective_has_that_expectation(style: bool) -> None:
    """Of 4,000 draws, whose standard error is about 0.03 nats."""
    made = model(style)
    guide = AmortizedGuide(made).double()
    loss, exact = Loss(made, guide), float(exact_objective(made, guide, X, 40).detach())
    draws = np.array([float(loss(X.repeat(20, 1)).detach()) for _ in range(200)])
    assert abs(draws.mean() - exact) < 4 * draws.std(ddof=1) / len(draws) ** 0.5


@pytest.mark.parametrize("discrete", [GumbelSoftmax, ScoreFunction])
def test_other_ways_to_handle_the_cluster_learn(discrete: Any) -> None:
    made = model()
    guide = AmortizedGuide(made, discrete=discrete()).double()
    SVIRunner(made, guide, seed=0).fit(X, 3, progress=False)
    assert all(p.grad is not None for p in guide.encoder.parameters())


def test_importance_weights_bound_the_evidence() -> None:
    made = model()
    guide = AmortizedGuide(made).double()
    grid = np.linspace(-30, 30, 6001)
    z = np.repeat(grid[:, None], len(X), 1)
    evidence = logsumexp(log_joint(made, z), (0, 1)) + np.log(grid[1] - grid[0])
    found = log_importance_weights(guide, X, 4000)
    estimate = (found.logsumexp(0) - np.log(4000)).numpy()
    relative = (found - torch.as_tensor(evidence)).exp().std(0).numpy() / 4000**0.5
    assert (np.abs(np.exp(estimate - evidence) - 1) < 5 * relative).all()


def test_what_a_user_asks_of_a_fitted_guide(tmp_path: Path) -> None:
    made = model(style=True)
    guide = AmortizedGuide(made).double()
    runner = SVIRunner(made, guide, seed=0).fit(X, 2, progress=False)
    kinds = guide.predict(X)["kind"]
    means = {name: torch.as_tensor(each) for name, each in guide.embed(X).items()}
    expected = made.decode(means, c_kind=torch.as_tensor(kinds)).mean.detach().numpy()
    np.testing.assert_allclose(guide.reconstruct(X), expected, rtol=1e-10)
    assert made.generate(6).shape == made.generate(6, "kind", 1).shape == (6, D)
    runner.save(tmp_path)
    again = SVIRunner.load(tmp_path, guide=AmortizedGuide(model(True, seed=1)).double())
    assert (again.guide.predict(X)["kind"] == kinds).all()
    image = {"image_shape": (2, 2), "columns": 2}
    cluster_samples(guide, X, "kind", **image)
    facet_swaps(guide, X, "style", image_shape=(2, 2))


def test_a_facets_cluster_moves_with_its_latent() -> None:
    """In figures of exchanged and drawn latents, and in the explorer."""
    made = model(style=True)
    guide = AmortizedGuide(made).double()
    z = {name: torch.as_tensor(each)[:2] for name, each in guide.embed(X).items()}
    kinds = torch.as_tensor(guide.predict(X)["kind"])[:2]
    expected = made.decode(z | {"kind": z["kind"].flip(0)}, c_kind=kinds.flip(0)).mean
    axes = facet_swaps(guide, X, "kind", pairs=1, image_shape=(2, 2)).axes[0]
    shown = axes.images[0].get_array()
    again = facet_swaps(guide, X, "style", pairs=1, image_shape=(2, 2)).axes[0].images[0]
    assert not np.array_equal(shown, again.get_array())
    found = Explorer(guide, X).swaps("kind", 1, 0)[0]  # the facet is that of datum 1
    np.testing.assert_allclose(found[1], expected[0].detach(), rtol=1e-6)


class Both(ClusterVAE):
    decoded_clusters = ("kind", "style")


def test_held_latents_keep_their_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datum's own in the explorer; in a figure those that were drawn with them."""
    facets = {"kind": GaussianMixture(K, 1), "style": GaussianMixture(50, 1)}
    made = Both((D,), facets, Normal(0.5), SharedMLP((8,)))
    guide, seen, decode = AmortizedGuide(made), [], made.decode
    explorer = Explorer(guide, X)
    monkeypatch.setattr(
        made,
        "decode",
        lambda z, **c: (seen.append(torch.as_tensor(c["c_style"])), decode(z, **c))[1],
    )
    explorer.samples("kind", n=3, held=1)
    assert (seen[-1] == int(guide.predict(X)["style"][1])).all()
    seen.clear()
    cluster_samples(guide, X, "kind", hold_others=True, columns=2, image_shape=(2, 2))
    assert all(torch.equal(each, seen[0][:1].expand_as(each)) for each in seen)


def test_generated_clusters_are_those_of_their_latents() -> None:
    """A fixed one is, and others have the posterior of a cluster given z, by the prior."""
    made = model()
    prior = made.mixtures["kind"]
    z = {"kind": prior.sample(20_000)}
    drawn = made.draw_clusters(z)["c_kind"].mean(0)
    share = prior.logits.detach().softmax(-1)
    error = (share * (1 - share) / 20_000).sqrt()
    assert ((drawn - share).abs() < 4 * error).all()
    assert torch.equal(made.draw_clusters(z, "kind", None)["c_kind"].mean(0) > 0, share > 0)
    assert (made.draw_clusters(z, "kind", 2)["c_kind"].argmax(-1) == 2).all()


def test_what_cannot_be_is_refused() -> None:
    made = model()
    with pytest.raises(ValueError, match="c_kind follows from z: choose it by facet= and cluster="):
        made.generate(2, c_kind=[0, 1])
    with pytest.raises(ValueError, match=r"decoder reads the cluster of 'kind', .* fit_mixtures"):
        warm_start(SVIRunner(made, AmortizedGuide(made).double()), X, 1, progress=False)
    with pytest.raises(ValueError, match="decoded_clusters names 'kind': it is a tuple of facets"):
        ClusterVAE((D,), {"other": GaussianMixture(2, 1)})


@pytest.mark.parametrize("kind", [VaDEGuide, MarginalGuide])
def test_guides_that_rest_on_z_are_refused(kind: type) -> None:
    with pytest.raises(ValueError, match=r"ClusterVAE's decoder reads a cluster .* AmortizedGuide"):
        kind(model())


class Undeclared(ClusterVAE):
    """Its decoder reads the cluster, but :meth:`decode` does not know of it."""

    decoded_clusters = ()

    @property
    def decoder_dims(self) -> tuple[int, ...]:
        return (1 + K,)

    def forward(self, x: Tensor | None = None, *, size: int = 1, num_samples: int = 1) -> Tensor:
        prior = self.mixtures["kind"]
        with self.plate(x, size):
            c = pyro.sample("c_kind", prior.component())
            z = pyro.sample("z_kind", prior.latent(c))
            output = self.decoder([concatenate(z, c)], None)
            return pyro.sample("x", self.likelihood(output, 1), obs=x)


class Shifted(ClusterVAE):
    """Its forward adds the cluster's number to x's mean, and decode does not."""

    def decode(self, z: Any, **given: Any) -> Any:
        return super().decode({name: each * 2 for name, each in z.items()}, **given)

    def forward(self, x: Tensor | None = None, *, size: int = 1, num_samples: int = 1) -> Tensor:
        prior = self.mixtures["kind"]
        with self.plate(x, size):
            c = pyro.sample("c_kind", prior.component())
            z = pyro.sample("z_kind", prior.latent(c))
            return pyro.sample("x", super().decode({"kind": z}, c_kind=c), obs=x)


class Scaled(ClusterVAE):
    """Its plate is not that of the batch's rows."""

    def plate(self, x: Tensor | None, size: int) -> Any:
        return pyro.plate("data", 600, subsample_size=5, dim=-1)


def test_a_plate_of_its_own_is_refused_before_training() -> None:
    made = Scaled((D,), {"kind": GaussianMixture(K, 1)}, Normal(0.5), SharedMLP((8,)))
    with pytest.raises(ValueError, match=r"Scaled.forward draws x in another plate .* 5 rows"):
        SVIRunner(made, AmortizedGuide(made)).fit(X, 1, progress=False)


@pytest.mark.parametrize(
    ("kind", "of_guide", "how"),
    [
        (Undeclared, AmortizedGuide, "shape"),
        (Undeclared, VaDEGuide, "shape"),
        (Shifted, AmortizedGuide, "densities of x"),
    ],
)
def test_a_program_that_disagrees_with_decode_is_refused_before_training(
    kind: type[FacetModel], of_guide: type, how: str
) -> None:
    pyro.set_rng_seed(0)
    made = kind((D,), {"kind": GaussianMixture(K, 1)}, Normal(0.5), SharedMLP((8,)))
    with pytest.raises(ValueError, match=f"forward and its decode disagree .*{how}"):
        SVIRunner(made, of_guide(made)).fit(X, 1, progress=False)
