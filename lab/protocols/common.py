"""What every protocol shares: its flags, its run folder, and scoring facets against labels."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from examples.common import format_scores, score_facets
from facetvae.datasets import Dataset, some_rows
from guides import FacetGuide, MarginalGuide, VaDEGuide
from inference import Checkpoints, SVIRunner, cold_start
from inference.callbacks import Evaluate, JSONLines
from inference.checkpoints.atomic_files import write_atomically
from inference.figures.facets import save_figures
from inference.randomness import usable_device
from inference.runner import Callback
from inference.schedules import Schedule
from lab.protocols.datasets import load
from lab.protocols.scoring import Scores, WatchClusters, count_clusters, probe_facets
from ppl_models import FacetModel
from ppl_models.given.checks import (
    check_count,
    check_device,
    check_keys,
    check_kind,
    check_positive,
    check_seed,
    number,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SettingsT = TypeVar("SettingsT")
# What a finished run leaves in its folder, beside run.json and what `once` keeps in those below it.
LEFT = (
    "card.md",
    "config.json",
    "history.jsonl",
    "metrics.jsonl",
    "results.json",
    "scores.json",
    "start.json",
    "weights.safetensors",
    "figures/*.png",
)
SMOKE_ROWS = 380, 120  # training and test images of a smoke run
# Settings that mean something at 0, such as none at all; the others must be above.
MAY_BE_ZERO = (
    "beta",
    "beta_c",
    "classifier_rows",
    "final_fits",
    "labels",
    "layers_after_merge",
    "neighbor_epochs",
    "restarts",
    "start_rows",
    "style_weight",
    "train_rows",
    "waiting_weight",
    "warm_epochs",
)


def build_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """The flags that all examples have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m lab.protocols.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="sizes for a run of seconds, on data that needs no files",
    )
    parser.add_argument(
        "--data-root", type=Path, help="where data sets are (default: $FACETVAE_DATA, else ./data)"
    )
    seed, device = reader("seed", int, check_seed), reader("device", str, check_device)
    parser.add_argument(
        "--seed", type=seed, default=0, help="of networks, shuffling and draws (default: 0)"
    )
    parser.add_argument(
        "--device", type=device, default="cpu", help='such as "cpu" or "cuda" (default: cpu)'
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume from the checkpoints in the run folder, called as before; without this flag "
        "they are removed",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / name, help=f"run folder (default: runs/{name})"
    )
    return parser


def reader(name: str, kind: type, check: Callable[[str, Any], Any]) -> Callable[[str], Any]:
    """What argparse reads a flag with: its value as ``kind``, if it passes ``check``."""

    def read(text: str) -> Any:
        value = kind(text)
        try:
            check(name, value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return value

    read.__name__ = kind.__name__  # which argparse names where the text is none of that kind
    return read


def _check_setting(name: str, value: Any) -> None:
    """:raises ValueError: if it is a number out of its range."""
    if isinstance(value, str):
        return
    if name not in MAY_BE_ZERO:
        (check_count if isinstance(value, int) else check_positive)(name, value)
    elif not 0 <= number(value) < float("inf"):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")


def add_setting_flags(
    parser: argparse.ArgumentParser, settings: Any, **options: dict[str, Any]
) -> None:
    """A flag for each field of ``settings`` that is named in ``options``, which hold argparse's own
    options.
    """
    for name, extra in options.items():
        default = getattr(settings, name)
        kind = reader(
            name, type(default[0] if isinstance(default, tuple) else default), _check_setting
        )
        count = {"nargs": len(default)} if isinstance(default, tuple) else {}
        metavar = {} if "choices" in extra else {"metavar": "N"}
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=kind, default=argparse.SUPPRESS, **{**metavar, **count, **extra}
        )


def resolve(args: argparse.Namespace, settings: SettingsT, smoke: SettingsT) -> SettingsT:
    """The settings, or the smoke run's sizes, with every flag that was given in its place."""
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(args).items()
        if name in {field.name for field in fields(settings)}
    }
    return replace(smoke if args.smoke else settings, **given)


def load_data(name: str, args: argparse.Namespace, train_rows: int = 0) -> Dataset:
    """The data set of that name; in a smoke run a few hundred images of it.

    :param train_rows: most training images, the same ones in every run; 0 for all.
    :raises FileNotFoundError: if its files are not there.
    """
    data = load(name, args.data_root)
    if args.smoke:
        data = some_rows(data, *SMOKE_ROWS)
    return some_rows(data, train_rows) if train_rows else data


def as_images(data: Dataset) -> Dataset:
    """The same data as ``[N, C, H, W]``."""
    shape = data.image_shape if len(data.image_shape) == 3 else (1, *data.image_shape)
    return replace(data, train=data.train.reshape(-1, *shape), test=data.test.reshape(-1, *shape))


ROWS_FLAG = {"help": "most training images, the same ones in every run; 0 for all"}
INIT_FLAG: dict[str, Any] = {"help": "of the networks", "choices": ("pytorch", "glorot_normal")}
LOSSES: dict[str, Callable[[FacetModel], FacetGuide]] = {
    "primary": VaDEGuide,
    "alternate": MarginalGuide,
}
LOSS_FLAG: dict[str, Any] = {
    "help": "the objective's form: with responsibilities (Eq. 62), or the clusters summed out of "
    "the mixture's density (Eq. 71)",
    "choices": tuple(LOSSES),
}
START_FLAGS: dict[str, dict[str, Any]] = {
    "start": {
        "help": "what the mixtures are fitted to before the first step: posteriors' means or draws",
        "choices": ("means", "draws"),
    },
    "start_rows": {"help": "most rows that they are fitted to; 0 for all"},
}
TRAINING_FLAGS: dict[str, dict[str, Any]] = {
    "lr": {"help": "Adam's rate"},
    "batch_size": {"help": "rows a step"},
    "precision": {"help": "of the networks", "choices": ("float32", "bf16")},
    "evaluate_every": {"help": "epochs between scores"},
}


def begin(out: Path, resume: bool) -> None:
    """Create the run folder; of an earlier run nothing is left there that could be taken for this
    one's, but to go on from it.

    :raises SystemExit: if it is a file, or below one, or cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()  # before anything of an earlier run is gone
    except (FileExistsError, NotADirectoryError):
        raise SystemExit(f"--out {out}: it, or a folder above it, is a file") from None
    except OSError as error:
        raise SystemExit(
            f"--out {out}: it cannot be written ({error.strerror}): give a folder that can be"
        ) from None
    if not resume:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
        _remove_left(out)


def _remove_left(out: Path) -> None:
    """Remove what an earlier run has left, and nothing from a folder that is none of a run's."""
    if not (out / "run.json").is_file():
        return
    for path in [path for pattern in LEFT for path in out.glob(pattern)]:
        path.unlink()


def checkpointing(out: Path, *phase: str) -> Checkpoints:
    """Checkpoints of one phase of a run: each minute, and at its end."""
    return Checkpoints(out.joinpath("checkpoints", *phase), epochs=None, seconds=60, resume=True)


def describe(args: argparse.Namespace, settings: Any) -> dict[str, Any]:
    """How a run is called, in JSON types: its flags, and its settings as they apply."""
    flags = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()
    }
    return json.loads(json.dumps({"flags": flags, "settings": asdict(settings)}))


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Names of the flags and settings that make two described runs different ones."""
    incidental = {"resume", "out", "data_root", "device"}
    before, after = ({**run["flags"], **run["settings"]} for run in (then, now))
    return {
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    } - incidental


def open_run_folder(args: argparse.Namespace, settings: Any, data: Dataset) -> Path:
    """Create ``args.out`` and note there what is about to be run: flags, settings as they apply,
    and data.

    ``args.device`` becomes this process's own.
    """
    args.device = own_device(args.device)
    run = {"data": data.name, **describe(args, settings)}
    if args.resume and (args.out / "run.json").is_file():
        _check_same(_read(args.out / "run.json", "flags", "settings", "data"), run, args.out)
    if not leads():
        return args.out
    usable_device(args.device)  # before anything of an earlier run is gone
    begin(args.out, args.resume)
    write_json(args.out / "run.json", run)
    return args.out


def write_json(path: Path, content: Any) -> None:
    """Write a file of a run folder, whole or not at all."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _read(path: Path, *keys: str) -> dict[str, Any]:
    """What a file of a run folder holds.

    :raises SystemExit: if it is damaged or of another program, naming it.
    """
    try:
        content = dict(check_keys("it", json.loads(path.read_text()), keys))
        for name in {"flags", "settings"} & content.keys():
            check_kind(name, content[name], dict, "a JSON object")
    except ValueError as error:
        raise SystemExit(
            f"{path} is damaged, or of another program ({error}): remove it, or give another --out"
        ) from None
    return content


def _check_same(then: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    """Refuse what does not fit.

    :raises SystemExit: if a run is to be gone on with that was called with other flags, naming
        them.
    """
    if names := differing(then, now) | ({"data"} if then["data"] != now["data"] else set()):
        raise SystemExit(
            f"--resume: the run in {out} was called with another {' and '.join(sorted(names))}: "
            "call it as it was "
            "called then, or start anew without --resume"
        )


def once(
    path: Path, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What the file at ``path`` holds, if it was made with these settings; else what ``make``
    gives, written there.
    """
    described = json.loads(json.dumps(settings))
    if path.is_file() and (kept := _read(path, "settings"))["settings"] == described:
        print(f"{path} is there already, made with the same settings")
        return kept
    made = {"settings": described, **make()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, made)
    return json.loads(path.read_text())


def leads() -> bool:
    """Whether this is the first of the processes that ``torchrun`` started, or the only one: it
    alone writes.
    """
    return os.environ.get("RANK", "0") == "0"


def first_goes_on() -> None:
    """The first process goes on from here, and the others end."""
    if not leads():
        raise SystemExit(0)


def refuse_several() -> None:
    """Refuse what does not fit.

    :raises SystemExit: where ``torchrun`` started several processes for an example that trains
        many runs in one.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SystemExit("this example trains many runs in one process: start it without torchrun")


def own_device(device: str) -> str:
    """This process's: of several on a machine with several cards each takes its own."""
    return (
        f"cuda:{os.environ['LOCAL_RANK']}"
        if device == "cuda" and "LOCAL_RANK" in os.environ
        else device
    )


@cache
def fabric_on(kind: str) -> Fabric | None:
    """What makes one run of the processes that ``torchrun`` started; ``None`` where there is one
    process.

    :param kind: of device, such as ``"cpu"``.
    """
    world, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world == 1:
        return None
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator=kind, devices=here, num_nodes=world // here, strategy="ddp")
    fabric.launch()
    return fabric


def runner_options(settings: Any, seed: int, device: str) -> dict[str, Any]:
    """Of a runner: its rate, seed, device and precision."""
    return {"lr": settings.lr, "seed": seed, "device": device, "precision": settings.precision}


def check_schedule(
    schedule: Schedule, model: FacetModel, data: Dataset, epochs: int, batch_size: int
) -> None:
    """Let a schedule that does not fit the run say so before anything is done or written."""
    steps = -(-len(data.train) // batch_size)
    schedule.bind(model, steps, epochs * steps)


def check_start(data: Dataset, settings: Any, num_components: Sequence[int]) -> None:
    """Refuse, before anything is written, mixtures with more components than rows to fit them to.

    :raises SystemExit: if there are such.
    """
    start_rows = getattr(settings, "start_rows", 0)
    rows = min(len(data.train), start_rows or len(data.train))
    if rows < max(num_components, default=0):
        larger = "a larger --start-rows, " if start_rows else ""
        raise SystemExit(
            f"{rows} rows are too few to start {max(num_components)} components from: give "
            f"{larger}more data, or a smaller --num-components"
        )


def start_mixtures(guide: FacetGuide, data: Dataset, settings: Any, seed: int) -> None:
    """The cold start that ``settings`` describe by ``start`` and ``start_rows``."""
    cold_start(guide, data.train, settings.start_rows or None, seed, settings.start)


def train_first(
    start: Callable[..., SVIRunner],
    guide: FacetGuide,
    data: Dataset,
    out: Path,
    schedule: Schedule,
    **options: Any,
) -> SVIRunner:
    """Train by a start, and return a runner for what follows, its history begun.

    :param start: such as ``warm_start``, bound to its lengths.
    :param options: of both runners: rate, seed, device, precision.
    """
    first = SVIRunner(guide.model, guide, schedule=schedule, **options)
    how = {"checkpoints": checkpointing(out, "warm-start"), "fabric": fabric_on(first.device.type)}
    start(first, data.train, seed=options["seed"], **how)
    runner = SVIRunner(guide.model, guide, **options)
    runner.history = list(first.history)
    return runner


def fit_and_report(
    runner: SVIRunner,
    data: Dataset,
    out: Path,
    settings: Any,
    epochs: int,
    callbacks: Sequence[Callback] = (),
    temperature: float = 1.0,
    fit: Callable[..., SVIRunner] = SVIRunner.fit,
) -> Scores:
    """Train, then leave everything in ``out``: metrics by line, checkpoint, scores, figures.

    How many clusters the training data use before the first step is noted in ``start.json``.

    Processes that ``torchrun`` started train together; all but the first end here.

    :param callbacks: called before those that score and write.
    :param temperature: of the samples that are drawn as figures.
    :param fit: what trains the runner, called as :meth:`~inference.SVIRunner.fit`.
    """

    def accuracies(runner: SVIRunner) -> dict[str, float]:
        return {
            f"{score}_{facet}_{label}": values[score]
            for facet, scores in score_facets(runner.guide, data).items()
            for label, values in scores.items()
            for score in ("accuracy", "accuracy_train")
        }

    if leads():
        write_json(out / "start.json", count_clusters(runner.guide, data.train))
    callbacks = [
        *callbacks,
        Evaluate(accuracies, settings.evaluate_every),
        WatchClusters(data.train, settings.evaluate_every),
        JSONLines(out / "metrics.jsonl"),
    ]
    how = {"checkpoints": checkpointing(out, "training"), "fabric": fabric_on(runner.device.type)}
    size = settings.batch_size
    fit(runner, data.train, epochs=epochs, batch_size=size, callbacks=callbacks, **how)
    first_goes_on()
    runner.save(out)
    scores = score_run(runner.guide, data, out, runner.seed)
    save_figures(
        out / "figures", runner.guide, data.test, runner.history, data.image_shape, temperature
    )
    return scores


def score_run(guide: FacetGuide, data: Dataset, out: Path, seed: int) -> Scores:
    """Scores of clusters and latents, printed and written to ``out``."""
    scores = score_facets(guide, data)
    for facet, probes in probe_facets(guide, data, seed).items():
        for label, accuracies in probes.items():
            scores.setdefault(facet, {}).setdefault(label, {}).update(accuracies)
    write_json(out / "scores.json", scores)
    print(format_scores(scores))
    return scores
