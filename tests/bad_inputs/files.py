"""Saved runs and checkpoints that are damaged or do not fit."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from guides import VaDEGuide
from inference import Checkpoints, SVIRunner, export_predictions
from inference.callbacks import Draw, JSONLines
from inference.checkpoints.periodic import CheckpointWarning
from inference.figures import save_figures
from ppl_models import MFCVAE, GaussianMixture, SharedMLP
from tests.bad_inputs.shared import COUNT, NAN, D, On, X, at, runner, vae

# Files: of a saved run, of its checkpoints, of data.
WEIGHTS, HISTORY = "weights.safetensors", "history.jsonl"


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(keep * len(content))])

    return damage


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def rewrite(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        change(config)
        (run / "config.json").write_text(json.dumps(config))

    return damage


def change(part: str, to: Callable[[Any], Any]) -> Callable[[Path], None]:
    return rewrite(lambda config: config.update({part: to(config[part])}))


def having(**items: Any) -> Callable[[dict], dict]:
    return lambda part: {**part, **items}


def without(name: str) -> Callable[[dict], dict]:
    return lambda part: {key: value for key, value in part.items() if key != name}


def of_class(name: str) -> Callable[[Any], dict]:
    return lambda part: {"@class": f"inference.{name}"}


def reweigh(to: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        weights = load_file(run / "weights.safetensors")
        save_file(
            {name: to(tensor) for name, tensor in weights.items()}, run / "weights.safetensors"
        )

    return damage


def with_digests(damage: Callable[[Path], Any]) -> Callable[[Path], None]:
    """The same, where the description gets the digests of what is there."""

    def consistent(run: Path) -> None:
        damage(run)
        config = json.loads((run / "config.json").read_text())
        for name in config["files"]:
            config["files"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
        (run / "config.json").write_text(json.dumps(config))

    return consistent


# What takes a path first.
TAKES_PATH: dict[str, Callable[[Any], Any]] = {
    "Checkpoints": Checkpoints,
    "Draw": lambda path: Draw(path, print, 1),
    "JSONLines": JSONLines,
    "SVIRunner.load": SVIRunner.load,
    "SVIRunner.save": lambda path: runner().save(path),
    "export_predictions": lambda path: export_predictions(runner().guide, path, X),
    "save_figures": lambda path: save_figures(path, runner().guide, X),
}
PATHS = {
    about: [("type: path", partial(call, 3), "must be a path, .* got int")]
    for about, call in TAKES_PATH.items()
}


def loads(
    fault: str,
    damage: Callable[[Path], Any] | None,
    message: str,
    error: type[Exception] = ValueError,
    **options: Any,
) -> tuple[Any, ...]:
    return fault, On(partial(SVIRunner.load, **options), damage), message, error


DAMAGED = [
    loads("file: weights cut", with_digests(cut(WEIGHTS, 0.5)), "truncated or damaged"),
    loads(
        "file: weights of a pickle",
        with_digests(write(WEIGHTS, b"\x80\x04." * 40)),
        "truncated or damaged",
    ),
    loads("file: config cut", cut("config.json", 0.7), "truncated or damaged"),
    loads("file: config no text", write("config.json", b"\xff\xfe\x00"), "truncated or damaged"),
    loads("file: history cut", with_digests(cut(HISTORY, 0.7)), "truncated or damaged"),
    loads("missing: weights", remove(WEIGHTS), "weights.safetensors is missing", FileNotFoundError),
    loads("missing: config", remove("config.json"), "config.json is missing", FileNotFoundError),
    loads("missing: history", remove(HISTORY), "history.jsonl is missing", FileNotFoundError),
    loads("missing: folder", shutil.rmtree, "no checkpoint in", FileNotFoundError),
    loads("file: weights of another save", reweigh(lambda t: t + 1), "weights.safetensors belongs"),
    loads(
        "file: history of another save",
        write(HISTORY, '{"epoch": 1, "step": 1}\n'),
        "history.jsonl belongs to another save than the files beside it, or is damaged",
    ),
    loads(
        "type: half precision",
        with_digests(reweigh(torch.Tensor.half)),
        "are torch.float16, but float32 or float64 is needed",
    ),
    loads(
        "file: digests of another kind",
        rewrite(lambda c: c["files"].update({HISTORY: "../*"})),
        "files must hold digests, got '../\\*'",
    ),
    loads("file: no digests", rewrite(lambda c: c.pop("files")), "config.json is damaged: files"),
    loads("file: foreign json", write("config.json", '{"a": 1}'), "not a checkpoint of format"),
    loads(
        "file: other format",
        rewrite(lambda c: c.update(format=99)),
        "not a checkpoint of format 1: its format is 99",
    ),
    loads("file: no guide", rewrite(lambda c: c.pop("guide")), "config.json is damaged: it lacks"),
    loads("file: progress a list", change("progress", lambda p: [1]), "progress must hold epoch"),
    loads("file: no epoch", change("progress", without("epoch")), "config.json is damaged"),
    loads("file: epoch text", change("progress", having(epoch="1")), "progress must count, got"),
    loads("file: runner null", change("runner", lambda r: None), "damaged: runner must hold lr"),
    loads("file: no rate", change("runner", without("lr")), "config.json is damaged: runner lacks"),
    loads("file: unknown option", change("runner", having(device="cpu")), "damaged: runner has an"),
    loads("file: rate text", change("runner", having(lr="a")), "damaged: lr must be a positive"),
    loads("file: seed null", change("runner", having(seed=None)), "config.json is damaged: seed"),
    loads("file: schedule text", change("schedule", lambda s: "warm"), "json is damaged: schedule"),
    loads(
        "file: guard as schedule",
        change("schedule", of_class("guard.Guard")),
        "schedule must be .* got Guard",
    ),
    loads(
        "file: history of numbers",
        with_digests(write(HISTORY, "1\n2\n")),
        "history.jsonl is damaged: line 1 must hold",
    ),
    loads("nan: weights", with_digests(reweigh(lambda t: t * NAN)), "the weights in .* are"),
    loads("type: guide", None, "guide must be a guide, such as .* got str", guide="x"),
    loads("type: schedule", None, "schedule must be such as .* got str", schedule="x"),
    loads(
        "unknown: device",
        None,
        "device must be a name such as 'cpu' or 'cuda', got 'gpu'",
        device="gpu",
    ),
    loads(
        "file: foreign class",
        rewrite(lambda c: c["guide"].update({"@class": "os.system"})),
        "'os.system', which is not part of this library, so it is not imported",
    ),
    loads(
        "file: not buildable",
        rewrite(lambda c: c["guide"].update({"@class": "inference.elbo"})),
        "not something a checkpoint may build",
    ),
    loads(
        "file: renamed class",
        rewrite(lambda c: c["guide"].update({"@class": "guides.vade.Gone"})),
        "which this version of the library lacks",
    ),
    loads(
        "file: other arguments", change("guide", having(temperature=1)), "does not fit this version"
    ),
    loads(
        "file: wrong argument",
        change("guide", having(num_samples=0)),
        f"num_samples {COUNT}, got 0",
    ),
    loads(
        "shape: other sizes",
        rewrite(lambda c: c["guide"]["model"]["facets"]["digit"].update(num_components=5)),
        r"do not fit the guide; they differ in \['model.facets.digit.loc'",
    ),
]
LOADING = {
    "SVIRunner.load": [
        *DAMAGED,
        (
            "misfit: guide",
            On(partial(SVIRunner.load, guide=vae())),
            "do not fit the guide; they differ",
        ),
        (
            "file: not a folder",
            at("config.json", SVIRunner.load),
            "no checkpoint in",
            FileNotFoundError,
        ),
    ],
    "SVIRunner.save": [
        (
            "file: in the way",
            at("config.json", TAKES_PATH["SVIRunner.save"]),
            "config.json",
            FileExistsError,
        )
    ],
}


def resumed(run: Path, lr: float = 5e-4, x: Any = X, **options: Any) -> None:
    """Go on from the checkpoints of the saved run, which was called in the same way but for
    options.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # says why a checkpoint is skipped
        saved_runner(lr).fit(
            x, **{**SIZES, "checkpoints": Checkpoints(run / "checkpoints", resume=True), **options}
        )


SIZES = {"epochs": 1, "batch_size": 3, "progress": False}
STATE, STORED, DIGESTS = (
    f"checkpoints/step-0000000002/{n}"
    for n in ("state.json", "tensors.safetensors", "digests.json")
)


def saved_runner(lr: float = 5e-4) -> SVIRunner:
    g = VaDEGuide(MFCVAE((D,), {"digit": GaussianMixture(3, 2)}, network=SharedMLP((8,))))
    return SVIRunner(g.model, g, lr=lr)


def saved(folder: Path) -> Path:
    """A run's folder: what ``save`` writes, the last checkpoint of the run, and a file of
    somebody's own.
    """
    fitted = saved_runner().fit(X, **SIZES, checkpoints=Checkpoints(folder / "checkpoints"))
    write("notes.txt", "mine")(folder)
    return fitted.save(folder)


def restate(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    """Write another state into the checkpoint, its digest included."""

    def damage(run: Path) -> None:
        state = json.dumps(change(json.loads((run / STATE).read_text()))).encode()
        digests = json.loads((run / DIGESTS).read_text())
        write(STATE, state)(run)
        write(DIGESTS, json.dumps({**digests, "state.json": hashlib.sha256(state).hexdigest()}))(
            run
        )

    return damage


INCOMPLETE: dict[str, Callable[[Path], Any]] = {
    "file: state cut": cut(STATE, 0.5),
    "file: tensors cut": cut(STORED, 0.5),
    "file: digests cut": cut(DIGESTS, 0.5),
    "file: digests no text": write(DIGESTS, b"\xff\xfe"),
    "file: state of another format": restate(lambda state: {**state, "format": 99}),
    "file: state foreign": restate(lambda state: [1]),
    "missing: tensors": remove(STORED),
    "missing: digests": remove(DIGESTS),
}
RESUMING = {
    "Checkpoints": [
        *(
            (fault, On(resumed, damage), "no checkpoint in .* is complete")
            for fault, damage in INCOMPLETE.items()
        ),
        (
            "misfit: sizes",
            On(partial(resumed, batch_size=4)),
            "another run, which differs in sizes",
        ),
        ("misfit: data", On(partial(resumed, x=X[::-1].copy())), "which differs in data"),
        ("misfit: rate", On(partial(resumed, lr=1e-3)), "another run, which differs in"),
        ("file: no folder", at("config.json", Checkpoints), "is a file, but a folder for check"),
        ("range: epochs", lambda: Checkpoints("new", epochs=0), f"epochs {COUNT}, got 0"),
        ("range: seconds", lambda: Checkpoints("new", seconds=-1), "seconds must be a positive"),
        ("type: resume", lambda: Checkpoints("new", resume="yes"), "resume must be True or False"),
    ],
    "Checkpoints.check": [
        ("misfit: not resumed", at("checkpoints", Checkpoints), "resume it with resume=True")
    ],
}
