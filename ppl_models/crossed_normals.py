"""Log-densities of many values under many Normals, each value under each."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear

# Entries of the intermediate [B, K, d] below which its few passes take less time than the product's
# preparation.
SMALL_INTERMEDIATE = 2**14
# Types of devices without float64.
SINGLE_PRECISION = {"mps"}


def product_pays(z: Tensor, loc: Tensor) -> bool:
    """Whether to use :func:`normal_log_probs` for values ``[..., d]`` and means ``[K, d]``; not in
    an exported program, which is the same for any number of values.
    """
    if torch.compiler.is_exporting():
        return False
    entries = math.prod(z.shape[:-1]) * loc.numel()
    return entries > SMALL_INTERMEDIATE and z.device.type not in SINGLE_PRECISION


def normal_log_probs(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""log Normal(z; loc, scale) of each value under each Normal, by one product of matrices.

    .. math:: -\frac{1}{2} \sum_i \frac{(z_i - \mu_i)^2}{\sigma_i^2}
              = \sum_i \Big(-\frac{1}{2 \sigma_i^2} z_i^2 + \frac{\mu_i}{\sigma_i^2} z_i\Big)
              - \sum_i \frac{\mu_i^2}{2 \sigma_i^2}

    No intermediate has an entry for each value, Normal and dimension. Because the terms cancel, the
    product is computed in float64: its error is about :math:`2^{-53}` times the sum of
    :math:`(|z_i| + |\mu_i|)^2 / \sigma_i^2`. In float32, this exceeds the error of the formula on
    the left only where :math:`|z_i| / \sigma_i` is above about :math:`10^5`, and is then still far
    below what rounding z to float32 changes. Gradients are as accurate as on the left or more.

    :param z: values ``[..., d]``.
    :param loc: means ``[K, d]``.
    :param scale: standard deviations ``[K, d]``.
    :returns: ``[..., K]``, of the dtype of ``z``.
    """
    d = z.shape[-1]
    value, mean, deviation = z.reshape(-1, d).double(), loc.double(), scale.double()
    precision = deviation.square().reciprocal()
    weighted = precision * mean
    constant = (0.5 * weighted * mean + deviation.log()).sum(-1) + 0.5 * math.log(2 * math.pi) * d
    terms = torch.cat([value.square(), value], -1)
    log_probs = linear(terms, torch.cat([-0.5 * precision, weighted], -1), -constant)
    return log_probs.to(z.dtype).reshape(*z.shape[:-1], len(loc))
