"""The arrays behind the explorer of a fitted run."""

from facetvae.explorer.explorer import Axis, Cluster, Explorer, Knowledge, Moved
from facetvae.explorer.pictures import Pictures

__all__ = ["Axis", "Cluster", "Explorer", "Knowledge", "Moved", "Pictures"]
