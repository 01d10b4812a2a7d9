"""What an objective must do with a guide's discrete sites."""

from __future__ import annotations

from enum import Enum

__all__ = ["Needs"]


class Needs(Enum):
    """What an objective must do right for a guide; which ones do is known where objectives are."""

    #: every site is drawn with a gradient of its own
    NOTHING = "nothing"
    #: draws are shared among the members of a group
    GROUPING = "grouping"
    #: clusters are enumerated, with probabilities that follow from the draws of z
    ENUMERATION = "enumeration"
    #: clusters are enumerated, and no posterior depends on the draw of another site: a KL in
    #: closed form is right too
    FREE_ENUMERATION = "free enumeration"
    #: unknown classes are enumerated, known ones are given
    CLASSIFICATION = "classification"
    #: clusters are relaxed, so that their density is never to be asked for
    RELAXATION = "relaxation"
    #: clusters are drawn without a gradient of their own
    SCORING = "scoring"
