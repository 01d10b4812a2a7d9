"""Which reader a user's data have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from facetvae.estimators.arrays import Reader, plain_table
from facetvae.estimators.counts import reads_counts
from facetvae.estimators.embeddings import EmbeddingReader, are_embeddings
from facetvae.estimators.frames import frame_reader, is_mixed
from facetvae.estimators.mistaken import warn_of_ids
from ppl_models import Likelihood
from ppl_models.given.frames import Form, columns_given, is_frame


def reader_for(
    X: Any, columns: Mapping[str, Likelihood] | None, likelihood: Likelihood | None
) -> Reader:
    """The reader of ``X``, given likelihoods by column, or the one for all entries."""
    if columns is not None and not is_frame(X):
        raise ValueError(
            "columns= is for a data frame, whose columns have names, but X is "
            f"{type(X).__name__}: give pandas.DataFrame(X, columns=[...])"
        )
    if (counts := reads_counts(X, likelihood)) is not None:
        return counts
    form = Form.of(X) if is_frame(X) else None
    if form is None or (columns is None and not is_mixed(X)):
        if form is not None:
            warn_of_ids(columns_given(X))
        embeddings = likelihood is None and are_embeddings(np.asarray(plain_table(X)))
        return EmbeddingReader(form=form) if embeddings else Reader(form=form)
    if likelihood is not None:
        raise ValueError(
            "likelihood= is one for all entries, which does not do for a frame with a likelihood a "
            'column: give columns= by name alone, such as {"age": Normal()}'
        )
    return frame_reader(X, columns or {})
