"""``facetvae explore`` and ``describe``, of runs on the laboratory's data sets, too.

python -m lab.explore explore runs/mfcvae --data-root DATA
"""

from facetvae.command import main
from lab.protocols.datasets import DATASETS

if __name__ == "__main__":
    main(datasets=DATASETS)
