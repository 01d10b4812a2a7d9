"""N-VAE: its objectives from the paper's formulas, labels that are known in part, and what it
learns.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import kl_divergence

from guides import ClassifierGuide, ConditionalGuide, VaDEGuide
from inference import Constant, CoolDown, Loss, SVIRunner, data_dependent_start, kl_by_dimension
from inference.figures.facets import facet_draws, facet_swaps, save_figures
from inference.training.loop import DeadFacetWarning
from lab.figures.classes import kl_by_class
from ppl_models import CVAE, MLP, NVAE, GaussianMixture, Normal, VaDE
from tests.paper import normal

CLASSES, D_CLASS, D_SHARED, PIXELS, SCALE = 3, 2, 1, 5, 0.625  # which float32 can hold
X = torch.rand(4, PIXELS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABEL = torch.tensor([2, 0, 1, 2])
KNOWN = torch.tensor([True, False, True, False])


def build(
    seed: int = 0, num_samples: int = 1, label_weight: float | None = None, **options: Any
) -> ClassifierGuide:
    torch.manual_seed(seed)
    model = NVAE(
        (PIXELS,),
        CLASSES,
        D_CLASS,
        D_SHARED,
        Normal(SCALE),
        MLP((7,), "tanh", dropout=0),
        **options,
    )
    guide = ClassifierGuide(model, num_samples, label_weight).double()
    for p in guide.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return guide


def dirichlet_kl(a: np.ndarray, b: np.ndarray) -> float:
    """KL(Dirichlet(a) || Dirichlet(b)), from the densities' normalizing constants and E log pi."""
    return float(
        gammaln(a.sum())
        - gammaln(b.sum())
        + (gammaln(b) - gammaln(a)).sum()
        + ((a - b) * (digamma(a) - digamma(a.sum()))).sum()
    )


def parts(guide: ClassifierGuide) -> tuple[TorchNormal, TorchNormal, Tensor]:
    """q(z_s given x), q(z_c given x), the classifier's log-probabilities, by the bare encoder."""
    shared, classes = guide.encoder(X)
    return (
        normal(shared),
        normal(classes[:, : 2 * CLASSES * D_CLASS]),
        classes[:, -CLASSES:].log_softmax(-1),
    )


def log_likelihood(guide: ClassifierGuide, i: int, y: int, z_s: Tensor, z_c: Tensor) -> Tensor:
    """log p(x_i given y, z), the decoder's input entry by entry (III B and Appendix B)."""
    own = [0.0 * z for z in z_c]
    for j in range(D_CLASS):
        own[y * D_CLASS + j] = z_c[y * D_CLASS + j]
    one_hot = [torch.tensor(float(k == y), dtype=X.dtype) for k in range(CLASSES)]
    read = torch.stack([*z_s, *(one_hot if guide.model.class_bias else []), *own])
    return TorchNormal(guide.model.decoder.trunk(read), SCALE).log_prob(X[i]).sum()


def standard_kl(q: TorchNormal, i: int) -> Tensor:
    return kl_divergence(q, TorchNormal(torch.zeros_like(q.loc), 1.0))[i].sum()


@pytest.mark.parametrize("concentration", [None, 0.4, 1.0])
@pytest.mark.parametrize("class_bias", [True, False])
@pytest.mark.parametrize("partly", [True, False])
def test_the_objective_is_the_papers(
    concentration: float | None, class_bias: bool, partly: bool
) -> None:
    """Eq. 6 and Eq. 3 with log p(y) = -log L; a class that is not known is summed over."""
    guide = build(concentration=concentration, class_bias=class_bias)
    with pyro.poutine.trace() as trace:
        torch.manual_seed(3)
        guide(X, label=LABEL)
    z_s, z_c = (trace.trace.nodes[f"z_{name}"]["value"] for name in ("shared", "class"))
    q_s, q_c, log_q = parts(guide)

    def bound(i: int, y: int) -> Tensor:
        """Eq. 3, but for the KL of the latents."""
        found = log_likelihood(guide, i, y, z_s[i], z_c[i]) - math.log(CLASSES)
        if concentration is not None:
            a, b = concentration + log_q[i].exp().detach().numpy(), np.full(CLASSES, concentration)
            b[y] += 1
            found = found - dirichlet_kl(a, b)
        return found

    total = torch.zeros((), dtype=X.dtype)
    for i, y in enumerate(LABEL.tolist()):
        total = total - standard_kl(q_s, i) - standard_kl(q_c, i)
        if KNOWN[i] or not partly:
            total = total + bound(i, y) + (log_q[i, y] if concentration is None else 0.0)
        else:
            total = total + sum(
                log_q[i, k].exp() * (bound(i, k) - log_q[i, k]) for k in range(CLASSES)
            )
    torch.manual_seed(3)
    given = {"label": LABEL, "known": KNOWN} if partly else {"label": LABEL}
    loss = Loss(guide.model, guide)(X, **given)
    assert loss.item() == pytest.approx(-total.item() / 4, rel=1e-10)


def test_terms_add_up_and_leave_the_classifiers_lesson_out() -> None:
    """The ELBO of known labels is without log q(y given x): of two guides that differ in its weight
    it is the same.
    """
    for concentration in (None, 1.0):
        terms = []
        for weight in (0.0, 7.0):
            guide = build(concentration=concentration, label_weight=weight)
            torch.manual_seed(0)
            terms.append(Loss(guide.model, guide).terms(X, label=LABEL))
        assert terms[0] == terms[1]
        kls = sum(value for name, value in terms[0].items() if name.startswith("kl"))
        torch.testing.assert_close(terms[0]["reconstruction"] - kls, terms[0]["elbo"])
        _, q_c, log_q = parts(guide)
        assert terms[0]["kl_z_class"].item() == pytest.approx(
            sum(standard_kl(q_c, i).item() for i in range(4)) / 4
        )
        wanted = math.log(CLASSES)
        if concentration is not None:
            a, b = 1 + log_q.exp().detach().numpy(), 1 + np.eye(CLASSES)[LABEL]
            wanted += np.mean([dirichlet_kl(*pair) for pair in zip(a, b, strict=True)])
        assert terms[0]["kl_c_class"].item() == pytest.approx(wanted)


def test_beta_c_multiplies_the_kl_of_the_classes_latents_alone() -> None:
    """Eq. 7: raising the weight of z_class to 2 costs one more KL of it and nothing else."""
    guide = build(concentration=1.0)
    q_c = parts(guide)[1]
    losses = []
    for weights in ({}, {"z_class": 2.0}):
        kl_weights, _ = Constant(weights).bind(guide.model, 1, 1)(torch.tensor(0))
        torch.manual_seed(0)
        loss = Loss(guide.model, guide)(X, kl_weights=kl_weights, label=LABEL)
        losses.append(loss.item())
    assert losses[1] - losses[0] == pytest.approx(
        sum(standard_kl(q_c, i).item() for i in range(4)) / 4
    )


def test_weights_cool_down_by_the_same_factor_in_each_step_and_stay_at_one() -> None:
    """20^(1 - t / T) for the site that is named, 1 for all others and for every step after T."""
    model = build().model
    weights = CoolDown({"z_class": 20.0}, 10).bind(model, 5, 20)
    for step in range(21):
        kl_weights, gates = weights(torch.tensor(step))
        by_site = {**dict.fromkeys(model.by_site(kl_weights), 1.0)}
        by_site["z_class"] = 20.0 ** max(0.0, 1 - step / 10)
        assert {n: float(w) for n, w in model.by_site(kl_weights).items()} == pytest.approx(by_site)
        assert gates.tolist() == [1.0, 1.0]
    everywhere, _ = CoolDown(4.0, 2).bind(model, 1, 2)(torch.tensor(1))
    torch.testing.assert_close(everywhere, torch.full_like(everywhere, 2.0))


def test_cvae_is_its_formula() -> None:
    """E log p(x given z, u) - KL(q(z given x, u) || Normal(0, I)), draw by draw."""
    torch.manual_seed(0)
    model = CVAE((PIXELS,), CLASSES, 2, Normal(SCALE), MLP((7,), "tanh", dropout=0))
    guide = ConditionalGuide(model).double()
    one_hot = torch.eye(CLASSES, dtype=X.dtype)[LABEL]
    q = normal(guide.encoder(torch.cat([X, one_hot], 1))[0])
    torch.manual_seed(4)
    with pyro.poutine.trace() as trace:
        guide(X, label=LABEL)
    z = trace.trace.nodes["z_z"]["value"]
    mean = model.decoder.trunk(torch.cat([one_hot, z], 1))
    kl = q.log_prob(z).sum() - TorchNormal(0.0, 1.0).log_prob(z).sum()
    wanted = TorchNormal(mean, SCALE).log_prob(X).sum() - kl
    torch.manual_seed(4)
    assert Loss(model, guide)(X, label=LABEL).item() == pytest.approx(-wanted.item() / 4, rel=1e-10)
    assert model.generate(3, label=torch.tensor([0, 2, 1])).shape == (3, PIXELS)


def test_predictions_never_look_at_labels_and_reconstructions_do() -> None:
    guide = build()
    np.testing.assert_equal(guide.predict_proba(X), guide.predict_proba(X, label=LABEL))
    np.testing.assert_equal(guide.embed(X), guide.embed(X, label=LABEL))
    predicted = guide.predict(X)["class"]
    np.testing.assert_array_equal(guide.reconstruct(X), guide.reconstruct(X, label=predicted))
    assert (
        np.abs(guide.reconstruct(X) - guide.reconstruct(X, label=(predicted + 1) % CLASSES)).max()
        > 1e-3
    )
    half = np.where(np.arange(4) < 2, predicted, -1)
    np.testing.assert_array_equal(guide.reconstruct(X, label=half), guide.reconstruct(X))


def test_only_the_block_of_the_class_is_decoded() -> None:
    """Moving another class's latents changes nothing, moving one's own does."""
    model = build().model
    z = {"shared": torch.zeros(CLASSES, D_SHARED), "class": torch.zeros(CLASSES, CLASSES * D_CLASS)}
    y, before = torch.arange(CLASSES), model.decode(z, label=torch.arange(CLASSES)).mean
    for k in range(CLASSES):
        moved = z["class"].clone()
        moved[:, k * D_CLASS] = 2.0
        changed = (model.decode({**z, "class": moved}, label=y).mean - before).abs().amax(-1) > 1e-6
        assert changed.tolist() == (y == k).tolist()


def test_images_of_a_class_are_generated() -> None:
    """As that class's label decodes them, and of all classes where none is asked for."""
    model = build().model
    torch.manual_seed(0)
    made = model.generate(50, facet="class", cluster=1, temperature=0.0)
    z = {name: torch.zeros(1, prior.dim) for name, prior in model.priors.items()}
    torch.testing.assert_close(made, model.decode(z, label=torch.tensor([1])).mean.expand(50, -1))
    for asked in ({}, {"facet": "shared", "cluster": 0}, {"label": torch.arange(200) % CLASSES}):
        made = model.generate(200, temperature=0.0, **asked)
        assert len(made.round(decimals=6).unique(dim=0)) == CLASSES
    torch.testing.assert_close(
        made, model.generate(200, temperature=0.0, label=np.arange(200, dtype=np.uint8) % CLASSES)
    )


def blobs(n: int = 600, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes apart in two pixels; one pixel varies in class 1 alone, another in both."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 2
    own, both = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    side = 2.0 * label - 1
    x = torch.stack([side, side, label * own, both, torch.zeros(n)], 1)
    return x + 0.1 * torch.randn(n, 5, generator=generator), label


@pytest.mark.thorough
@pytest.mark.slow(2)
@pytest.mark.parametrize("concentration", [None, 1.0])
def test_it_parts_what_one_class_has_from_what_both_share(concentration: float | None) -> None:
    """The class's own factor goes to its block, the shared one to z_s."""
    pyro.set_rng_seed(0)
    x, label = blobs()
    model = NVAE(
        (5,), 2, 1, 1, Normal(0.2), MLP((32,), "tanh", dropout=0), concentration=concentration
    )
    guide = ClassifierGuide(model)
    runner = SVIRunner(model, guide, lr=1e-2, schedule=Constant({"z_class": 2.0}))
    runner.fit(x, epochs=60, batch_size=100, progress=False, label=label)
    assert (guide.predict(x)["class"] == label.numpy()).mean() > 0.98
    z = guide.embed(x)
    of_one = label == 1
    assert abs(np.corrcoef(z["class"][of_one, 1], x[of_one, 2])[0, 1]) > 0.9
    assert abs(np.corrcoef(z["shared"][:, 0], x[:, 3])[0, 1]) > 0.9
    variance = z["class"].var(0)
    assert variance[0] < 0.05 < 0.5 < z["class"][of_one, 1].var()
    assert z["class"][~of_one, 1].var() < 0.1


@pytest.mark.slow(1)
def test_few_labels_and_many_rows_without() -> None:
    """Ten labels of six hundred rows; all without a label are classified."""
    pyro.set_rng_seed(0)
    x, label = blobs()
    some = np.where(np.arange(600) < 10, label, -1)
    guide = ClassifierGuide(
        NVAE((5,), 2, 1, 1, Normal(0.2), MLP((32,), "tanh", dropout=0)), label_weight=10
    )
    runner = SVIRunner(guide.model, guide, lr=1e-2)
    runner.fit(x, epochs=30, batch_size=100, progress=False, label=some)
    assert (guide.predict(x)["class"] == label.numpy()).mean() > 0.98
    assert {"kl_c_class", "mutual_information_class"} <= runner.history[-1].keys()
    none_at_all = SVIRunner(guide.model, guide).fit(x, epochs=1, progress=False)
    assert np.isfinite(none_at_all.history[-1]["elbo"])


def test_a_run_is_saved_with_its_options(tmp_path: Path) -> None:
    guide = build(concentration=0.5, class_bias=False, num_samples=2, label_weight=3.0).float()
    loaded = SVIRunner.load(SVIRunner(guide.model, guide).save(tmp_path)).guide
    assert (loaded.label_weight, loaded.num_samples, loaded.model.concentration) == (3.0, 2, 0.5)
    np.testing.assert_array_equal(loaded.predict_proba(X)["class"], guide.predict_proba(X)["class"])


def test_the_figures_of_all_models_are_drawn(tmp_path: Path) -> None:
    guide = build().float()
    history = SVIRunner(guide.model, guide).fit(X, epochs=2, progress=False, label=LABEL).history
    made = {path.stem for path in save_figures(tmp_path / "a", guide, X, history, (1, 5))}
    assert made == {
        "overview",
        "clusters_class",
        "samples_class",
        "samples_class_others_held",
        "swap_shared",
        "swap_class",
        "draws_shared",
        "draws_class",
        "training",
    }
    torch.manual_seed(0)
    conditional = ConditionalGuide(CVAE((5,), CLASSES, 2, network=MLP((4,))))
    assert facet_swaps(conditional, X, "z", (1, 5), label=LABEL).axes
    assert facet_draws(conditional, X, "z", (1, 5), label=LABEL).axes


def test_classes_that_are_missing_keep_their_blocks_names() -> None:
    figure = kl_by_class(np.ones((4, 6)), [0, 2, 2, 0], 2)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "1", "2"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0", "2"]


@pytest.mark.slow(3)
def test_a_class_whose_latents_say_nothing_is_reported() -> None:
    guide = build(concentration=1.0).float()
    runner = SVIRunner(guide.model, guide, schedule=Constant({"z_class": 1000.0}), lr=0.1)
    with pytest.warns(DeadFacetWarning, match=r"facet 'class' ended with KL\(z\)"):
        runner.fit(X.repeat(8, 1), epochs=100, progress=False, label=LABEL.repeat(8))


def test_networks_are_scaled_to_data_with_their_labels() -> None:
    for label in (LABEL, [0, -1, 2, -1]):
        guide = build().float()
        data_dependent_start(guide, X, label=label)
        assert np.isfinite(guide.reconstruct(X)).all()


def test_kl_by_dimension_is_the_formula() -> None:
    """(mean^2 + variance - 1 - log variance) / 2; facets with clusters are left out."""
    guide = build()
    for name, q in guide.posterior(X).items():
        wanted = 0.5 * (q.mean**2 + q.variance - 1 - q.variance.log())
        np.testing.assert_allclose(kl_by_dimension(guide, X)[name], wanted, rtol=1e-9)
    clustered = VaDEGuide(VaDE((5,), GaussianMixture(3, 2)))
    assert kl_by_dimension(clustered, X.float()) == {}
