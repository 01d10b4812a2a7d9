"""The arrays behind the explorer of a fitted run."""

from inference.exploring.explorer import Axis, Cluster, Explorer, Knowledge, Moved
from inference.exploring.pictures import Pictures

__all__ = ["Axis", "Cluster", "Explorer", "Knowledge", "Moved", "Pictures"]
