"""How long it takes to draw one configuration of 3DShapes, with the cache empty and full.

python -m lab.benchmarks.draw_shapes
"""

from __future__ import annotations

import os
import tempfile
import time

from lab.protocols import shapes


def main() -> None:
    factors = shapes.factor_grid(wall=5, object=6)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for state in ("empty", "full"):
            started = time.perf_counter()
            images = shapes.draw(factors)
            print(
                f"{len(images)} images with the cache {state}: "
                f"{time.perf_counter() - started:.1f} s"
            )


if __name__ == "__main__":
    main()
