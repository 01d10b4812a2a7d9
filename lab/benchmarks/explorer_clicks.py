"""How long the explorer takes from a click to the picture: at the server, and in a headless
Chromium.

    python -m lab.benchmarks.explorer_clicks --data-root DATA

An MFCVAE of the paper's size (Table 4) is fitted to MNIST for an epoch, a warm start, or --run
gives one. At the server the time is of the answer with its pictures encoded; in the browser it is
from the click to the second frame after new pictures are there. The first click of each kind is
among the others. --pictures FOLDER writes the views as they are drawn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch

from facetvae.datasets import mnist
from facetvae.explorer import serve as explore
from facetvae.explorer import views as explore_views
from facetvae.explorer.data import open_run
from facetvae.explorer.explorer import Explorer
from guides import VaDEGuide
from inference import SVIRunner, warm_start
from ppl_models import MFCVAE, GaussianMixture
from tests import chromium

# Act, then call back with milliseconds once the visible elements of a selector are others, whole,
# and on the screen.
MEASURE = """
const [act, watched, done] = arguments;
const shown = each => each.getClientRects().length;
const visible = () => [...document.querySelectorAll(watched)].filter(shown);
const look = () => visible().map(each => each.src || each.outerHTML).join();
const drawn = each => each.tagName != 'IMG' || (each.complete && each.naturalWidth);
const whole = () => visible().length && visible().every(drawn);
const before = look(), started = performance.now();
new Function(act)();
const wait = () => {
  if (look() != before && whole())
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - started)));
  else if (performance.now() - started > 30000) done(-1);
  else requestAnimationFrame(wait);
};
wait();
"""


def fitted(root: Path | None, folder: Path) -> Path:
    """A run of Table 4's size, fitted for an epoch."""
    torch.manual_seed(0)
    data = mnist(root)
    guide = VaDEGuide(
        MFCVAE((784,), {"style": GaussianMixture(25, 5), "digit": GaussianMixture(25, 5)})
    )
    runner = SVIRunner(guide.model, guide, precision="bf16")
    warm_start(runner, data.train, 1, restarts=1, progress=False).save(folder)
    (folder / "run.json").write_text(json.dumps({"data": "mnist"}))
    return folder


def at_the_server(explorer: Explorer, clicks: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of answer."""
    facets, number, described = explorer.facets, count(), cache(explorer.about)

    def moved() -> None:
        place = next(number)
        found = explorer.moved(facets[place % 2], place, {0: 0.1 * place})
        explore_views.png(explorer.pictures(found.datum[None])[0])

    def samples() -> Any:
        facet = facets[next(number) % 2]
        return explore_views.sample_rows(
            explorer, facet, explorer.choices(facet)[:10], 1.0, None, next(number)
        )

    answers: dict[str, Callable[[], Any]] = {
        "Clusters": lambda: explore_views.clusters_view(
            explorer, facets[next(number) % 2], described
        ),
        "Swaps": lambda: explore_views.swap_table(
            explorer, facets[next(number) % 2], next(number), next(number)
        ),
        "Latents": moved,
        "Samples": samples,
    }
    return {name: [timed(answer) for _ in range(clicks)] for name, answer in answers.items()}


def timed(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - started)


def pressed(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).click()"


def option(name: str, place: int) -> str:
    return pressed(f"#{name} label:nth-child({place}) input")


def in_the_browser(page: chromium.Page, clicks: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of click."""
    key = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    slide = f"document.querySelector('.latent:nth-child(2) [role=slider]').dispatchEvent({key})"
    kinds: dict[str, tuple[str, Callable[[int], str], str]] = {
        "Clusters": ("Clusters", lambda i: option("facet", 1 + i % 2), "#Clusters .strip"),
        "Swaps": (
            "Swaps",
            lambda i: pressed(f".thumbnails button:nth-child({5 + i % 40})"),
            ".swap",
        ),
        "Latents": ("Latents", lambda i: slide, "#moved"),
        "Samples": ("Samples", lambda i: pressed("#anew"), "#drawn .strip"),
        "Training": ("Clusters", lambda i: option("view", 5), "#Training .curves"),
    }
    found: dict[str, list[float]] = {}
    for name, (view, act, watched) in kinds.items():
        for i in range(clicks):
            page.choose("view", view)
            if i == 0:
                time.sleep(1.5)  # what opening the view draws is there
            found.setdefault(name, []).append(
                page.driver.execute_async_script(MEASURE, act(i), watched)
            )
            if found[name][-1] < 0:
                raise SystemExit(f"{name}: nothing was drawn within half a minute")
    return found


def take_pictures(page: chromium.Page, folder: Path) -> None:
    """Screenshots of what the page is best at."""
    page.choose("facet", "digit")
    for view, watched in {
        "Clusters": ".strip",
        "Swaps": ".swap",
        "Latents": ".latent",
        "Samples": "#drawn .strip",
    }.items():
        page.choose("view", view)
        page.wait(watched, None)
        if view == "Swaps":
            for place in (2, 9):
                page.click(f".thumbnails button:nth-child({place})")
        time.sleep(1.5)
        page.driver.execute_script("document.activeElement.blur()")
        page.driver.save_screenshot(str(folder / f"explorer_{view.lower()}.png"))


@contextmanager
def opened(args: argparse.Namespace, run: Path) -> Iterator[chromium.Page]:
    with (
        explore.serving(open_run(run, data_root=args.data_root), 0) as server,
        chromium.started() as driver,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        driver.set_script_timeout(60)
        try:
            yield chromium.Page(driver, explore.address_of(server))
        finally:
            server.shutdown()
            thread.join()


def report(where: str, milliseconds: dict[str, list[float]]) -> None:
    for name, values in milliseconds.items():
        print(f"{where:12s}{name:12s}{median(values):8.0f}{max(values):8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-root", type=Path, help="where MNIST lies (default: $FACETVAE_DATA, else ./data)"
    )
    parser.add_argument(
        "--run", type=Path, help="a run on MNIST, in place of one that is fitted for an epoch"
    )
    parser.add_argument("--clicks", type=int, default=20, help="of each kind")
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="write screenshots there, and measure nothing",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or fitted(args.data_root, Path(folder) / "mnist")
        if args.pictures:
            with opened(args, run) as page:
                take_pictures(page, args.pictures)
            return
        explorer = open_run(run, data_root=args.data_root).explorer
        print(
            f"{torch.get_num_threads()} threads, {len(explorer.x)} data, {args.clicks} clicks "
            "each; milliseconds"
        )
        print(f"{'where':12s}{'view':12s}{'median':>8s}{'worst':>8s}")
        report("server", at_the_server(explorer, args.clicks))
        with opened(args, run) as page:
            report("browser", in_the_browser(page, args.clicks))


if __name__ == "__main__":
    main()
