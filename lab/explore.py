"""``facetvae explore`` and ``describe``, of runs on the laboratory's data sets, too.

python -m lab.explore explore runs/mfcvae --data-root DATA
"""

from facetvae.command import main
from lab.protocols.datasets import DATASETS

# Images that are drawn here where the original is not, and then say so in their name.
DRAWN = {f"{name}-drawn": load for name, load in DATASETS.items()}

if __name__ == "__main__":
    main(datasets={**DATASETS, **DRAWN})
