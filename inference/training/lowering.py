"""Operations of recorded programs in JAX, by PyTorch's definition of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax, nn
from jax.flatten_util import ravel_pytree
from jax.scipy import special
from jax.scipy.linalg import solve_triangular
from torch.fx import Node
from torch.fx.node import map_arg

from inference.training.program import Program, mutates, shares_memory

#: Maps the values of what a program is given, and of random draws in their order, to the values
#: that the given tensors have afterwards.
Lowered = Callable[[Sequence[Any], Iterable[Any]], list[Any]]


def lower(program: Program, draws: set[Node]) -> Lowered:
    """A program as a function that JAX can trace.

    :param draws: its random operations, whose results are given.
    :raises ValueError: if an operation is not known here, or changes a part of a tensor.
    """
    nodes = list(program.graph.nodes)
    for node in nodes:
        if node.op == "call_function" and node not in draws:
            _check(node)
    constants = {
        node: jax.dlpack.from_dlpack(node.meta["value"].contiguous())
        for node in nodes
        if node.op == "get_attr"
    }
    given = [node for node in nodes if node.op == "placeholder"]

    def run(values: Sequence[Any], drawn: Iterable[Any]) -> list[Any]:
        known, rest = constants | dict(zip(given, values, strict=True)), iter(drawn)

        def value(node: Node) -> Any:
            return known[_tensor(node)]

        for node in nodes:
            if node.op == "call_function":
                known[node] = result = next(rest) if node in draws else _result(node, value)
                known |= _changed(node, result)
        return [known[each] for each in given]

    return run


def _check(node: Node) -> None:
    if name(node.target) not in OPERATIONS:
        raise ValueError(f"{node.target} has no form in JAX here")
    for changed in _written(node):
        if changed.op == "call_function" and shares_memory(changed):
            raise ValueError(f"{node.target} changes a part of a tensor")


def name(target: Any) -> str:
    """Of an operation, or of that which it is in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", "")
    return target._schema.name.removeprefix("aten::").removesuffix("_")


def _result(node: Node, value: Callable[[Node], Any]) -> Any:
    options = {k: v for k, v in node.kwargs.items() if k not in LAYOUT}
    operation = OPERATIONS[name(node.target)]
    result = operation(*map_arg(node.args, value), **map_arg(options, value))
    expected = node.meta.get("val")
    if isinstance(expected, torch.Tensor) and isinstance(result, Array):
        return result.astype(_type(expected.dtype))
    return result


def _type(dtype: torch.dtype) -> Any:
    """JAX's name of a type."""
    return jnp.dtype(str(dtype).removeprefix("torch."))


# What an operation changes in place.


def written(program: Program) -> set[int]:
    """Places of the tensors that a program changes."""
    changed = {each for node in program.graph.nodes for each in _written(node)}
    given = [node for node in program.graph.nodes if node.op == "placeholder"]
    return {i for i, node in enumerate(given) if node in changed}


def _written(node: Node) -> list[Node]:
    if not mutates(node):
        return []
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments[: len(node.args)]
    values: list[Any] = [
        value
        for argument, value in zip(arguments, node.args, strict=True)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and argument.name != "grads"  # which fused Adam changes only with a scale
    ]
    several = [value if isinstance(value, list | tuple) else [value] for value in values]
    return [_tensor(each) for of in several for each in of]


def _tensor(node: Node) -> Node:
    """The node whose tensor it gives, if it only gives back one that it has changed."""
    while mutates(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _changed(node: Node, result: Any) -> dict[Node, Any]:
    """Tensors that an operation has changed, with their new values."""
    tensors = _written(node)
    ends = result[-len(tensors) :] if isinstance(result, tuple) else [result]
    return dict(zip(tensors, ends, strict=True)) if tensors else {}


# Operations whose arguments have another form in JAX, and PyTorch's derivatives.


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
        axes = dim if dim is None or isinstance(dim, int) else tuple(dim) or None
        return function(x, axis=axes, keepdims=keepdim)

    return reduced


def _expand(x: Array, sizes: Sequence[int]) -> Array:
    new = len(sizes) - x.ndim
    shape = [x.shape[i - new] if size == -1 else size for i, size in enumerate(sizes)]
    return jnp.broadcast_to(x, shape)


def _part(dim: int, ndim: int, part: Any) -> tuple[Any, ...]:
    return tuple(part if i == dim % ndim else slice(None) for i in range(ndim))


def _slice_slope(g: Array, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Array:
    place = _part(dim, len(sizes), slice(start, end, step))
    return jnp.zeros(tuple(sizes), g.dtype).at[place].set(g)


def _split(x: Array, size: int | Sequence[int], dim: int = 0) -> list[Array]:
    total = x.shape[dim]
    ends = range(size, total, size) if isinstance(size, int) else [*accumulate(size)][:-1]
    return jnp.split(x, list(ends), axis=dim)


def _binary_cross_entropy(
    logits: Array, target: Array, weight: None = None, pos_weight: None = None, reduction: int = 1
) -> Array:
    assert weight is pos_weight is None
    losses = nn.softplus(logits) - logits * target
    return (losses, losses.mean(), losses.sum())[reduction]


def _elu_slope(
    g: Array, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Array
) -> Array:
    below = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return g * jnp.where(x > 0, scale, input_scale * below)


def _diagonal_matrix(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    assert offset == 0
    assert (dim2 - dim1, dim2 % (x.ndim + 1)) == (1, x.ndim)
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def _at(x: Array, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if each is None else each for each in indices)


def _index_put(x: Array, indices: Any, values: Any, accumulate: bool = False) -> Array:
    place = x.at[_at(x, indices)]
    return place.add(values) if accumulate else place.set(values)


def _triangular(
    A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    assert left
    solve = partial(solve_triangular, lower=not upper, unit_diagonal=unitriangular)
    return jnp.vectorize(solve, signature="(n,n),(n,k)->(n,k)")(A, B)


def _cast(x: Array, dtype: torch.dtype | None = None, non_blocking: bool = False) -> Array:
    return x if dtype is None else x.astype(_type(dtype))


def _adam(
    parameters: list, gradients: list, first: list, second: list, largest: list, counts: list,
    *, lr: Array, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
    maximize: bool, grad_scale: None = None, found_inf: Array,
) -> tuple[Any, ...]:  # fmt: skip
    """New parameters and moments; the old ones if ``found_inf``."""
    assert not amsgrad
    assert not maximize
    steps = jnp.stack(counts).astype(lr.dtype)  # in double precision, as 1 - beta2 cancels
    sizes, roots = lr / (1 - beta1**steps), 1 / jnp.sqrt(1 - beta2**steps)

    new: dict[int, tuple[Array, ...]] = {}
    for of in groups([p.size for p in parameters]):
        p, apart = ravel_pytree([parameters[i] for i in of])
        g, m, v = (ravel_pytree([each[i] for i in of])[0] for each in (gradients, first, second))
        size, root = (
            jnp.concatenate([jnp.full(parameters[i].size, each[i], p.dtype) for i in of])
            for each in (sizes, roots)
        )
        grad = g + weight_decay * p if weight_decay else g
        m_new = jnp.where(found_inf > 0, m, m + (1 - beta1) * (grad - m))
        v_new = jnp.where(found_inf > 0, v, beta2 * v + (1 - beta2) * grad * grad)
        # The moments are finished first, or XLA would keep copies of the old ones.
        m_new, v_new = lax.optimization_barrier((m_new, v_new))
        p_new = p - size * m_new / (jnp.sqrt(v_new) * root + eps)
        parts = map(apart, (jnp.where(found_inf > 0, p, p_new), m_new, v_new))
        new |= dict(zip(of, zip(*parts, strict=True), strict=True))
    moved, moments, squares = zip(*(new[i] for i in range(len(parameters))), strict=True)
    return *moved, *moments, *squares


def groups(sizes: Sequence[int]) -> list[list[int]]:
    """Places of tensors of these sizes that share a vector: the small ones; each other has one."""
    small = [i for i, size in enumerate(sizes) if size <= SMALL]
    return [*([small] if small else []), *([i] for i, size in enumerate(sizes) if size > SMALL)]


# Numbers of a tensor up to which it shares a vector with others, as a kernel for each takes long to
# compile; of larger ones the copies would take longer than that saves.
SMALL = 2**14
#: Names of options that say where a result lies.
LAYOUT = {"memory_format", "layout", "device", "pin_memory"}
# Operations that have their form in jax.numpy, with its name if that is another.
IN_NUMPY = """
    abs alias:asarray all bitwise_and bitwise_not bitwise_or bmm:matmul cat:concatenate clamp:clip
    clamp_max:minimum clamp_min:maximum clone:asarray detach:asarray diagonal div:true_divide dot
    empty_like:zeros_like eq:equal exp expm1 ge:greater_equal gt:greater isnan le:less_equal log
    log1p logical_and lt:less maximum minimum mm:matmul mul:multiply ne:not_equal neg:negative
    permute:transpose reciprocal sgn:sign sqrt stack t:transpose tanh transpose:swapaxes tril
    unsqueeze:expand_dims view:reshape _unsafe_view:reshape where
"""
#: Operations by PyTorch's name, those in place by that of the others.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{each.partition(":")[0]: getattr(jnp, each.rpartition(":")[2]) for each in IN_NUMPY.split()},
    "_fused_adam": _adam,
    "mkldnn::_linear_pointwise": lambda x, w, b, *how: x @ w.T if b is None else x @ w.T + b,
    "_linalg_solve_ex": lambda A, B, **how: [jnp.linalg.solve(A, B)],
    "_log_softmax": lambda x, dim, half: nn.log_softmax(x, axis=dim),
    "_log_softmax_backward_data": lambda g, y, dim, _: g - jnp.exp(y) * g.sum(dim, keepdims=True),
    "_softmax": lambda x, dim, half: nn.softmax(x, axis=dim),
    "_softmax_backward_data": lambda g, y, dim, _: y * (g - (g * y).sum(dim, keepdims=True)),
    "_to_copy": _cast,
    "add": lambda a, b, alpha=1: a + (b if alpha == 1 else alpha * b),
    "addmm": lambda bias, x, weight: x @ weight + bias,
    "argmax": lambda x, dim=None, keep=False: jnp.argmax(x, dim, keepdims=keep),
    "binary_cross_entropy_with_logits": _binary_cross_entropy,
    "copy": lambda x, other: jnp.broadcast_to(other, x.shape).astype(x.dtype),
    "diag_embed": _diagonal_matrix,
    "diagonal_backward": lambda g, sizes, *how: _diagonal_matrix(g, *how),
    "elu": lambda x, alpha=1.0: nn.elu(x, alpha),
    "elu_backward": _elu_slope,
    "expand": _expand,
    "getitem": operator.getitem,
    "index": lambda x, indices: x[_at(x, indices)],
    "index_add": lambda x, dim, i, y, alpha=1: x.at[_part(dim, x.ndim, i)].add(alpha * y),
    "index_put": _index_put,
    "index_select": lambda x, dim, index: jnp.take(x, index, axis=dim),
    "leaky_relu": lambda x, slope=0.01: nn.leaky_relu(x, slope),
    "leaky_relu_backward": lambda g, x, slope, is_result: jnp.where(x > 0, g, g * slope),
    "lgamma": special.gammaln,
    "linalg_solve_triangular": _triangular,
    "linalg_vector_norm": lambda x, order=2: jnp.linalg.vector_norm(x, ord=order),
    "logsumexp": _reduce(nn.logsumexp),
    "mean": _reduce(jnp.mean),
    "nan_to_num": lambda x, nan=0.0: jnp.nan_to_num(x, nan=nan),
    "new_zeros": lambda x, sizes, dtype=None: jnp.zeros(tuple(sizes), x.dtype),
    "pow": lambda x, power: x**power,
    "relu": nn.relu,
    "select": lambda x, dim, i: lax.index_in_dim(x, i, dim, keepdims=False),
    "sigmoid": nn.sigmoid,
    "slice": lambda x, dim=0, a=None, b=None, by=1: x[_part(dim, x.ndim, slice(a, b, by))],
    "slice_backward": _slice_slope,
    "softplus": lambda x, b=1, most=20: jnp.where(x * b > most, x, nn.softplus(x * b) / b),
    "softplus_backward": lambda g, x, b, most: jnp.where(x * b > most, g, g * nn.sigmoid(x * b)),
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": lambda x, dim: jnp.squeeze(x, dim) if x.shape[dim] == 1 else x,
    "sub": lambda a, b, alpha=1: a - (b if alpha == 1 else alpha * b),
    "sum": _reduce(jnp.sum),
    "tanh_backward": lambda g, result: g * (1 - result * result),
    "threshold_backward": lambda g, x, threshold: jnp.where(x > threshold, g, 0),
    "unbind": lambda x, dim=0: list(jnp.moveaxis(x, dim, 0)),
}
