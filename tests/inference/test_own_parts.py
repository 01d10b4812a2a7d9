"""What users put into a run: by default it ends as through Pyro, or says that it goes through Pyro.

Each situation is trained twice from the same seed, with ``compile=None`` and by default.
"""

from __future__ import annotations

import functools
import itertools
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from guides import AmortizedGuide, GumbelSoftmax, Refined, VaDEGuide
from inference import Guard, GuideEnum_ELBO, SVIRunner, fit_together
from inference.checkpoints.periodic import listening
from inference.schedules import Constant, Schedule
from inference.training import plan
from inference.training.recorder import Recorder, RecordingWarning
from inference.training.recording import record
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Normal
from tests.inference.test_recorded_steps import assert_same

X = torch.rand(20, 6, generator=torch.Generator().manual_seed(3)).double()
EPOCHS = 4


def a_model(digit: type[GaussianMixture] = GaussianMixture, likelihood: Any = Normal) -> MFCVAE:
    facets = {"style": GaussianMixture(2, 2), "digit": digit(3, 2)}
    return MFCVAE((6,), facets, likelihood(0.5), MLPLadder((5, 5)))


class Trial:
    """A guide, what else a run is given, what is done to it once built, and its callback."""

    def __init__(self) -> None:
        self.guide: Any = VaDEGuide(a_model())
        self.options: dict[str, Any] = {}
        self.built: Callable[[SVIRunner], None] = lambda runner: None
        self.at: Callable[[SVIRunner, int], None] = lambda runner, epoch: None

    @property
    def model(self) -> Any:
        return self.guide.model

    def run(self, mode: str | None) -> SVIRunner:
        self.guide.double()
        runner = SVIRunner(self.model, self.guide, lr=1e-2, compile=mode, **self.options)
        self.built(runner)

        def callback(run: Any, record: dict[str, Any]) -> None:
            self.at(run, record["epoch"])

        return runner.fit(X, EPOCHS, 5, callbacks=[callback], progress=False)


class Own(nn.Module):
    """A user's decoder around another one.

    :param does: what it makes of the output.
    """

    def __init__(self, inner: nn.Module, does: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.does = inner, does
        self.register_buffer("ema", torch.zeros(6))
        self.shift = nn.Parameter(torch.zeros(6))
        self._calls = 0

    def forward(self, inputs: Any, gates: Any = None) -> Tensor:
        return self.does(self, self.inner(inputs, gates) + self.shift)


def decoding(does: Callable[[Any, Tensor], Tensor]) -> Callable[[Trial], None]:
    """A situation with such a decoder."""

    def situation(trial: Trial) -> None:
        trial.model.decoder = Own(trial.model.decoder, does)

    return situation


def called_back(at: Callable[[SVIRunner, int], None]) -> Callable[[Trial], None]:
    """A situation of this library's parts and a callback."""

    def situation(trial: Trial) -> None:
        trial.at = at

    return situation


# Own modules: what a forward keeps, reads and stops.


def assigns_a_buffer(own: Any, y: Tensor) -> Tensor:
    own.ema = 0.9 * own.ema + 0.1 * y.detach().reshape(-1, 6).mean(0)
    return y - own.ema


def counts_its_calls(own: Any, y: Tensor) -> Tensor:
    own._calls += 1
    return y * (1 + 0.01 * own._calls)


# Hooks.


def gradient_hook(trial: Trial) -> None:
    trial.model.facets["digit"].loc.register_hook(lambda gradient: gradient * 0)


def forward_hook(trial: Trial) -> None:
    seen: list[float] = []

    def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
        seen.append(1.0)
        return output * (1 + 0.01 * len(seen))

    trial.model.decoder.register_forward_hook(hook)


def forward_pre_hook(trial: Trial) -> None:
    calls = itertools.count()

    def hook(module: Any, inputs: Any) -> Any:
        return ([each * (1 + 0.01 * next(calls)) for each in inputs[0]], *inputs[1:])

    trial.model.decoder.register_forward_pre_hook(hook)


def hook_that_a_callback_adds(runner: SVIRunner, epoch: int) -> None:
    if epoch == 3:
        runner.model.facets["digit"].loc.register_hook(lambda gradient: gradient * 0)


def hook_of_all_modules(trial: Trial) -> None:
    calls = itertools.count()
    kind = type(trial.model.likelihood)

    def hook(module: Any, inputs: Any) -> Any:
        return (inputs[0] + 0.01 * next(calls), *inputs[1:]) if type(module) is kind else None

    trial.options["remove"] = nn.modules.module.register_module_forward_pre_hook(hook)


# Own priors, likelihoods, schedules, objectives, guards.


class OwnMixture(GaussianMixture):
    calls = 0

    def log_joint(self, z: Tensor, **options: Any) -> Tensor:
        self.calls += 1
        return super().log_joint(z, **options) * (1 + 0.01 * self.calls)


class OwnNormal(Normal):
    growing = 1.0

    def forward(self, output: Tensor, *rest: Any) -> Any:
        self.growing *= 1.01
        return super().forward(output * self.growing, *rest)


def own_prior(trial: Trial) -> None:
    trial.guide = VaDEGuide(a_model(digit=OwnMixture))


def own_likelihood(trial: Trial) -> None:
    trial.guide = VaDEGuide(a_model(likelihood=OwnNormal))


class OwnSchedule(Schedule):
    gates_open = True
    weight = 0.1

    def bind(self, model: Any, steps_per_epoch: int, total_steps: int) -> Any:
        return lambda step: (model.gates.new_full((2, 2), self.weight), model.gates)


def schedule_with_an_attribute(trial: Trial) -> None:
    trial.options["schedule"] = OwnSchedule()
    trial.at = lambda runner, epoch: setattr(runner.schedule, "weight", 0.5 * epoch)


class KnownSchedule(Schedule):
    """Not a user's class, but it gives a user's function."""

    def bind(self, model: Any, steps_per_epoch: int, total_steps: int) -> Any:
        return functools.partial(growing_weights, model, itertools.count(1))


KnownSchedule.__module__ = "inference.schedules"


def growing_weights(model: Any, calls: Iterator[int], step: Tensor) -> tuple[Tensor, Tensor]:
    return model.gates.new_full((2, 2), 0.01 * next(calls)), model.gates


class OwnGuard(Guard):
    def clip(self, gradients: Any, norms: Tensor) -> None:
        self.max_norm = 1.0 if self.max_norm is None else self.max_norm * 0.9
        super().clip(gradients, norms)


class OwnObjective(GuideEnum_ELBO):
    calls = 0

    def differentiable_loss(self, *args: Any, **given: Any) -> Any:
        self.calls += 1
        return super().differentiable_loss(*args, **given) * (1 + 0.01 * self.calls)


# Callbacks.


def unfreezing(trial: Trial) -> None:
    trial.built = lambda runner: runner.guide.encoder.requires_grad_(False)

    def at(runner: SVIRunner, epoch: int) -> None:
        if epoch == 2:
            runner.guide.encoder.requires_grad_(True)

    trial.at = at


def unfreezing_in_stages(trial: Trial) -> None:
    parameters = list(trial.guide.parameters())
    for each in parameters[2:]:
        each.requires_grad_(False)

    def at(runner: SVIRunner, epoch: int) -> None:
        for each in parameters[2 : 2 + 4 * epoch]:
            each.requires_grad_(True)

    trial.at = at


def freezing(runner: SVIRunner, epoch: int) -> None:
    runner.model.facets["digit"].requires_grad_(epoch % 2 == 0)


def module_that_a_callback_inserts(runner: SVIRunner, epoch: int) -> None:
    if epoch == 2:
        own = Own(runner.model.decoder, counts_its_calls).double()
        runner.model.decoder = own.requires_grad_(False)


def average_of_weights(trial: Trial) -> None:
    def at(runner: SVIRunner, epoch: int) -> None:
        with torch.no_grad():
            for each, mean in zip(runner.guide.parameters(), means, strict=True):
                mean.lerp_(each, 0.5)
                each.copy_(mean)

    trial.at, means = at, [each.detach().double() for each in trial.guide.parameters()]


def new_buffers(runner: SVIRunner, epoch: int) -> None:
    likelihood = runner.model.likelihood
    for name, buffer in list(likelihood.named_buffers(recurse=False)):
        setattr(likelihood, name, buffer * 1.1)


def temperature(trial: Trial) -> None:
    trial.guide = AmortizedGuide(a_model(), discrete=GumbelSoftmax(0.5))
    trial.at = lambda runner, epoch: runner.guide.discrete.temperature.fill_(0.5 + epoch)


def rate_and_moments(runner: SVIRunner, epoch: int) -> None:
    runner.lr = 0.01 / epoch
    if epoch == 3:
        runner.optimizer.state.clear()


def refined(trial: Trial) -> None:
    trial.guide = VaDEGuide(a_model(), family=Refined(num_steps=2))


# Functions in the place of others, and parts of PyTorch.


def patched_instance(trial: Trial) -> None:
    decode, calls = trial.model.decode, itertools.count(1)
    trial.model.decode = lambda z, **given: decode(
        {name: each * (1 + 0.01 * next(calls)) for name, each in z.items()}, **given
    )


def patched_class(trial: Trial) -> None:
    before, calls = MFCVAE.decoder_inputs, itertools.count(1)

    def decoder_inputs(self: Any, z: Any, **given: Any) -> list[Tensor]:
        return [each * (1 + 0.01 * next(calls)) for each in before(self, z, **given)]

    MFCVAE.decoder_inputs = decoder_inputs  # type: ignore[method-assign]
    trial.options["restore"] = lambda: setattr(MFCVAE, "decoder_inputs", before)


class Halved(nn.Module):
    calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight / (1 + 0.01 * self.calls)


def linear_layers(trial: Trial) -> list[nn.Linear]:
    return [each for each in trial.guide.modules() if isinstance(each, nn.Linear)]


def own_parametrization(trial: Trial) -> None:
    parametrize.register_parametrization(linear_layers(trial)[0], "weight", Halved())


def weight_norm(trial: Trial) -> None:
    for layer in linear_layers(trial):
        parametrizations.weight_norm(layer)


def spectral_norm(trial: Trial) -> None:
    parametrizations.spectral_norm(linear_layers(trial)[0])


def option(**options: Callable[[], Any]) -> Callable[[Trial], None]:
    def situation(trial: Trial) -> None:
        trial.options.update({name: make() for name, make in options.items()})

    return situation


#: Of parts that this library or PyTorch has: these are recorded.
KNOWN: dict[str, Callable[[Trial], None]] = {
    "nothing": lambda trial: None,
    "parameters unfrozen by a callback": unfreezing,
    "parameters unfrozen in stages": unfreezing_in_stages,
    "parameters frozen and unfrozen": called_back(freezing),
    "a guide that stops gradients": refined,
    "buffers replaced by a callback": called_back(new_buffers),
    "average of weights copied by a callback": average_of_weights,
    "temperature set by a callback": temperature,
    "rate and moments": called_back(rate_and_moments),
    "weight norm": weight_norm,
    "constant weights": option(schedule=lambda: Constant(0.5)),
}
UNKNOWN: dict[str, Callable[[Trial], None]] = {
    "a module that does nothing else": decoding(lambda own, y: y),
    "gradient hook": gradient_hook,
    "forward hook": forward_hook,
    "forward pre-hook": forward_pre_hook,
    "hook that a callback adds": called_back(hook_that_a_callback_adds),
    "hook of all modules": hook_of_all_modules,
    "prior": own_prior,
    "likelihood": own_likelihood,
    "schedule with an attribute": schedule_with_an_attribute,
    "partial function": option(schedule=KnownSchedule),
    "guard": option(guard=OwnGuard),
    "module that a callback inserts": called_back(module_that_a_callback_inserts),
    "objective": option(objective=lambda: OwnObjective(max_plate_nesting=1)),
    "patched method of an instance": patched_instance,
    "patched method of a class": patched_class,
    "own parametrization": own_parametrization,
}
#: Of PyTorch's parts, but not to be recorded.
REFUSED: dict[str, Callable[[Trial], None]] = {"spectral norm": spectral_norm}


@pytest.fixture(autouse=True)
def few_steps_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "STEPS_THAT_PAY", 2 * EPOCHS)


def trained(situation: Callable[[Trial], None], mode: str | None) -> tuple[SVIRunner, list[str]]:
    """The run, and its warnings that its steps are not recorded."""
    pyro.set_rng_seed(0)
    trial = Trial()
    situation(trial)
    remove, restore = trial.options.pop("remove", None), trial.options.pop("restore", None)
    try:
        with warnings.catch_warnings(record=True, action="always") as found:
            runner = trial.run(mode)
    finally:
        if remove is not None:
            remove.remove()
        if restore is not None:
            restore()
    return runner, [str(w.message) for w in found if w.category is RecordingWarning]


@pytest.mark.parametrize("name", KNOWN | UNKNOWN | REFUSED)
def test_a_run_ends_as_through_pyro(name: str) -> None:
    """Or with one warning that names the cause, and then bit for bit."""
    situation = (KNOWN | UNKNOWN | REFUSED)[name]
    through_pyro, none = trained(situation, None)
    default, warned = trained(situation, "auto")
    assert none == []
    assert len(warned) == (name in UNKNOWN), warned
    # Adam may enlarge rounding where a gradient is all but zero.
    assert_same(through_pyro, default, 1e-6 if name in KNOWN else 1e-12, 1e-5)


def assigned(runner: SVIRunner, epoch: int) -> None:
    state = {name: each.clone() for name, each in runner.loss.state_dict().items()}
    runner.loss.load_state_dict(state, assign=True)


def replaced(runner: SVIRunner, epoch: int) -> None:
    prior = runner.model.facets["digit"]
    prior.loc = nn.Parameter(prior.loc.detach() + 1)


@pytest.mark.parametrize("mode", [None, "auto"])
@pytest.mark.parametrize("at", [assigned, replaced])
def test_parameters_that_are_replaced_are_noticed(
    at: Callable[[SVIRunner, int], None], mode: str | None
) -> None:
    """They would be used and not trained."""
    trial = Trial()
    trial.at = at
    with pytest.raises(ValueError, match=r"is not in the optimizer .*assign=True"):
        trial.run(mode)


def test_assigned_buffers_are_noticed_where_they_would_be_lost() -> None:
    """In a recorded step, which is refused then, and in the steps of several runs at once."""
    _, (warned,) = trained(decoding(assigns_a_buffer), "replay")
    assert "assigns the buffer 'guide.model.decoder.ema': change it in place" in warned
    trial = Trial()
    decoding(assigns_a_buffer)(trial)
    runner = SVIRunner(trial.model, trial.guide.double(), compile=None)
    with pytest.raises(ValueError, match=r"assigns the buffer .*in place"):
        fit_together([runner], X, 1, 5, progress=False)


def test_the_warning_names_the_part_and_what_to_do() -> None:
    _, (warned,) = trained(own_prior, "auto")
    assert "model.facets.digit is a tests.inference.test_own_parts.OwnMixture" in warned
    assert "compile='replay'" in warned
    assert "compile=None" in warned


def test_a_model_that_is_refused_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(Recorder, "_gradient", lambda *args: tried.append(args) or 1 / 0)
    trained(called_back(freezing), "auto")
    assert len(tried) == 1


@pytest.fixture
def stops() -> Iterator[None]:
    """Ctrl-C has its usual effect, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("stops")
def test_a_stop_while_recording_leaves_nothing_on() -> None:
    """It comes once the operations are recorded; in PyTorch's tracing it can leave modes on."""
    told: list[str] = []

    def function(x: Tensor) -> list[Tensor]:
        signal.raise_signal(signal.SIGINT)
        told.append("went on")
        return [x + 1]

    with pytest.raises(KeyboardInterrupt):
        record(function, [torch.zeros(2)])
    assert told == ["went on"]
    assert torch.ones(2).sum().item() == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("stops")
def test_a_second_stop_has_its_usual_effect() -> None:
    """In a notebook an exception, where the end of the process would be that of the kernel."""
    asked: list[int] = []
    with listening(asked.append):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert asked == [signal.SIGINT]
