"""Operations of recorded programs in JAX, forward only: JAX takes the gradient.

Each is written by PyTorch's definition of the operation, and gives its result in the same type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax, nn
from jax.scipy import special
from jax.scipy.linalg import solve_triangular
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from inference.training.simplify import attribute, mutates, shares_memory

aten = torch.ops.aten


class NotLoweredError(ValueError):
    """An operation has no form in JAX here."""


#: Maps the values of a program's tensors, and of its random draws in their order, to its results
#: and to the values that its tensors have afterwards.
Lowered = Callable[[Sequence[Any], Iterable[Any]], tuple[Any, list[Any]]]


def _type(dtype: torch.dtype) -> Any:
    """JAX's name of a type."""
    return jnp.dtype(str(dtype).removeprefix("torch."))


def lower(program: GraphModule, draws: set[Node]) -> Lowered:
    """A program as a function that JAX can trace.

    :param draws: its random operations, whose results are given.
    :raises NotLoweredError: if an operation is not known here, or changes a part of a tensor.
    """
    nodes = list(program.graph.nodes)
    for node in nodes:
        if node.op == "call_function" and node not in draws:
            _check(node)
    constants = {node: _constant(program, node) for node in nodes if node.op == "get_attr"}
    given = [node for node in nodes if node.op == "placeholder"]

    def run(values: Sequence[Any], drawn: Iterable[Any]) -> tuple[Any, list[Any]]:
        known: dict[Node, Any] = {**constants, **dict(zip(given, values, strict=True))}
        rest = iter(drawn)

        def value(node: Node) -> Any:
            return known[_tensor(node)]

        for node in nodes:
            if node.op == "output":
                return map_arg(node.args[0], value), [known[each] for each in given]
            if node.op == "call_function":
                known[node] = result = next(rest) if node in draws else _result(node, value)
                known |= _changed(node, result)
        raise AssertionError("a program ends with its output")

    return run


def _check(node: Node) -> None:
    if _operation(node.target) is None:
        raise NotLoweredError(f"{node.target} has no form in JAX here")
    for changed in _written(node):
        if changed.op == "call_function" and shares_memory(changed):
            raise NotLoweredError(f"{node.target} changes a part of a tensor")


def _constant(program: GraphModule, node: Node) -> Array:
    return jax.dlpack.from_dlpack(attribute(program, node).detach().contiguous())


def _operation(target: Any) -> Callable[..., Any] | None:
    """By the operation, or that which it is in place."""
    found = OPERATIONS.get(target)
    if found is not None or not isinstance(target, torch._ops.OpOverload):
        return found
    name, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    plain = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return OPERATIONS.get(getattr(plain, overload, None)) if plain is not None else None


def _result(node: Node, value: Callable[[Node], Any]) -> Any:
    operation = _operation(node.target)
    assert operation is not None
    options = {k: v for k, v in node.kwargs.items() if k not in LAYOUT}
    result = operation(*map_arg(node.args, value), **map_arg(options, value))
    expected = node.meta.get("val")
    if isinstance(expected, torch.Tensor) and isinstance(result, Array):
        return result.astype(_type(expected.dtype))
    return result


# What an operation changes in place.


def written(program: GraphModule) -> list[int]:
    """Places of the tensors that a program changes."""
    changed = {each for node in program.graph.nodes for each in _written(node)}
    given = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [i for i, node in enumerate(given) if node in changed]


def _written(node: Node) -> list[Node]:
    if not mutates(node):
        return []
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments[: len(node.args)]
    values: list[Any] = [
        value
        for argument, value in zip(arguments, node.args, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
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
    ends = result[-len(tensors) :] if node.target in SEVERAL_CHANGES else [result]
    return dict(zip(tensors, ends, strict=True)) if tensors else {}


# Operations, by the form of their arguments.


def _axes(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
        axes = None if dim is not None and not isinstance(dim, int) and not dim else _axes(dim)
        return function(x, axis=axes, keepdims=keepdim)

    return reduced


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + (b if alpha == 1 else alpha * b)


def _subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - (b if alpha == 1 else alpha * b)


def _expand(x: Array, sizes: Sequence[int]) -> Array:
    new = len(sizes) - x.ndim
    shape = [x.shape[i - new] if size == -1 else size for i, size in enumerate(sizes)]
    return jnp.broadcast_to(x, shape)


def _parts(dim: int, ndim: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if i == dim % ndim else slice(None) for i in range(ndim))


def _slice(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x[_parts(dim, x.ndim, slice(start, end, step))]


def _split(x: Array, size: int | Sequence[int], dim: int = 0) -> list[Array]:
    sizes = [size] * -(-x.shape[dim] // size) if isinstance(size, int) else size
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        x[_parts(dim, x.ndim, slice(end - size, end))]
        for end, size in zip(ends, sizes, strict=True)
    ]


def _binary_cross_entropy(
    logits: Array, target: Array, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Array:
    assert weight is None
    assert pos_weight is None
    return _reduction(nn.softplus(logits) - logits * target, reduction)


def _squared_error(x: Array, target: Array, reduction: int = 1) -> Array:
    return _reduction((x - target) ** 2, reduction)


def _reduction(x: Array, reduction: int) -> Array:
    return (lambda x: x, jnp.mean, jnp.sum)[reduction](x)


def _softplus(x: Array, beta: float = 1, threshold: float = 20) -> Array:
    # So that what is not used is finite, and has a finite derivative.
    small = jnp.minimum(x * beta, threshold)
    return jnp.where(x * beta > threshold, x, jnp.log1p(jnp.exp(small)) / beta)


@cache
def _slope(at_tensor: bool) -> float:
    """The derivative of PyTorch's ``clamp`` at its limit: 1 before version 2.14; since then 0 where
    the limit is a number, and a half where it is a tensor.
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones((), device="cpu", requires_grad=True)
        return float(torch.autograd.grad(x.clamp_max(x.detach() if at_tensor else 1.0), x)[0])


def _clamp(x: Array, least: Any = None, most: Any = None) -> Array:
    """With PyTorch's derivative at a limit; that of JAX's is a half."""
    x = x if least is None else _limited(x, least, jnp.less, jnp.less_equal, jnp.maximum)
    return x if most is None else _limited(x, most, jnp.greater, jnp.greater_equal, jnp.minimum)


def _limited(x: Array, limit: Any, beyond: Any, reached: Any, shared: Any) -> Array:
    slope = _slope(isinstance(limit, Array))
    if slope == 0.5:
        return shared(x, limit)
    return jnp.where((beyond if slope else reached)(x, limit), limit, x)


def _vector_norm(x: Array, order: float = 2, dim: Any = None, keepdim: bool = False) -> Array:
    """Its derivative at 0 is 0."""
    assert order == 2
    squares = jnp.sum(x * x, axis=_axes(dim), keepdims=keepdim)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def _at(x: Array, indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if each is None else each for each in indices)


def _along(x: Array, dim: int, index: Array) -> tuple[Any, ...]:
    places: list[Any] = list(jnp.indices(index.shape, sparse=True))
    places[dim] = index
    return tuple(places)


def _index_put(x: Array, indices: Any, values: Any, accumulate: bool = False) -> Array:
    place = x.at[_at(x, indices)]
    values = values.astype(x.dtype)
    return place.add(values) if accumulate else place.set(values)


def _index_add(x: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    return x.at[_parts(dim, x.ndim, index)].add((alpha * source).astype(x.dtype))  # type: ignore[arg-type]


def _index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[_parts(dim, x.ndim, index)].set(source.astype(x.dtype))  # type: ignore[arg-type]


def _scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[_along(x, dim, index)].add(source.astype(x.dtype))


def _scatter_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    assert include_self
    place = x.at[_along(x, dim, index)]
    method = {"amax": "max", "amin": "min", "sum": "add"}[reduce]
    reduced: Array = getattr(place, method)(source.astype(x.dtype))
    return reduced


def _triangular(
    A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    assert left
    solve = jnp.vectorize(
        lambda a, b: solve_triangular(a, b, lower=not upper, unit_diagonal=unitriangular),
        signature="(n,n),(n,k)->(n,k)",
    )
    return solve(A, B)


def _diagonal_matrix(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    assert (offset, dim1, dim2) == (0, -2, -1)
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def _new(x: Array, sizes: Sequence[int]) -> Array:
    return jnp.zeros(tuple(sizes), x.dtype)


def _sorted(
    x: Array, *, stable: bool = True, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    order = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


def _copy(x: Array, other: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(other, x.shape).astype(x.dtype)


def _cast(x: Array, dtype: torch.dtype | None = None, non_blocking: bool = False) -> Array:
    return x if dtype is None else x.astype(_type(dtype))


def _nan_to_num(
    x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    return jnp.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf)


# The optimizer.


def _adam(
    parameters: list, gradients: list, first: list, second: list, largest: list, counts: list,
    *, lr: Array, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
    maximize: bool, grad_scale: None = None, found_inf: Array | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """New parameters, gradients as they are, and new moments; the old ones if ``found_inf``."""
    assert not amsgrad
    assert not maximize
    steps = jnp.stack(counts).astype(lr.dtype)  # in double precision, as 1 - beta2 cancels
    sizes, roots = lr / (1 - beta1**steps), 1 / jnp.sqrt(1 - beta2**steps)

    def kept(new: Array, old: Array) -> Array:
        return new if found_inf is None else jnp.where(found_inf > 0, old, new)

    new = []
    for i, (p, g, m, v) in enumerate(zip(parameters, gradients, first, second, strict=True)):
        grad = g + weight_decay * p if weight_decay else g
        m_new = kept(m + (1 - beta1) * (grad - m), m)
        v_new = kept(beta2 * v + (1 - beta2) * grad * grad, v)
        # The moments are finished first, or XLA would keep copies of the old ones.
        m_new, v_new = lax.optimization_barrier((m_new, v_new))
        size, root = sizes[i].astype(p.dtype), roots[i].astype(p.dtype)
        new.append((kept(p - size * m_new / (jnp.sqrt(v_new) * root + eps), p), m_new, v_new))
    moved, moments, squares = ([*each] for each in zip(*new, strict=True))
    return None, *moved, *gradients, *moments, *squares


#: Names of options that say where a result lies.
LAYOUT = {"memory_format", "layout", "device", "pin_memory"}
#: Their results end with what they change.
SEVERAL_CHANGES = {aten._foreach_mul_.Tensor, aten._fused_adam_.tensor_lr}
OPERATIONS: dict[Any, Callable[..., Any]] = {
    operator.getitem: operator.getitem,
    # number by number
    aten.abs.default: jnp.abs,
    aten.add.Scalar: _add,
    aten.add.Tensor: _add,
    aten.bitwise_and.Tensor: jnp.bitwise_and,
    aten.bitwise_not.default: jnp.bitwise_not,
    aten.bitwise_or.Tensor: jnp.bitwise_or,
    aten.clamp.default: _clamp,
    aten.clamp_max.Tensor: lambda x, most: _clamp(x, None, most),
    aten.clamp_max.default: lambda x, most: _clamp(x, None, most),
    aten.clamp_min.default: _clamp,
    aten.digamma.default: special.digamma,
    aten.div.Scalar: jnp.true_divide,
    aten.div.Tensor: jnp.true_divide,
    aten.elu.default: lambda x, alpha=1.0: nn.elu(x, alpha),
    **dict.fromkeys((aten.eq.Scalar, aten.eq.Tensor), jnp.equal),
    aten.exp.default: jnp.exp,
    aten.expm1.default: jnp.expm1,
    aten.fill.Scalar: lambda x, value: jnp.full_like(x, value),
    aten.floor.default: jnp.floor,
    **dict.fromkeys((aten.ge.Scalar, aten.ge.Tensor), jnp.greater_equal),
    **dict.fromkeys((aten.gt.Scalar, aten.gt.Tensor), jnp.greater),
    aten.isnan.default: jnp.isnan,
    **dict.fromkeys((aten.le.Scalar, aten.le.Tensor), jnp.less_equal),
    aten.leaky_relu.default: lambda x, slope=0.01: nn.leaky_relu(x, slope),
    aten.lgamma.default: special.gammaln,
    aten.log.default: jnp.log,
    aten.log1p.default: jnp.log1p,
    aten.log_sigmoid_forward.default: lambda x: (nn.log_sigmoid(x), None),
    aten.logical_and.default: jnp.logical_and,
    **dict.fromkeys((aten.lt.Scalar, aten.lt.Tensor), jnp.less),
    aten.masked_fill.Scalar: lambda x, mask, value: jnp.where(mask, value, x),
    aten.maximum.default: jnp.maximum,
    aten.minimum.default: jnp.minimum,
    aten.mul.Scalar: jnp.multiply,
    aten.mul.Tensor: jnp.multiply,
    aten.nan_to_num.default: _nan_to_num,
    **dict.fromkeys((aten.ne.Scalar, aten.ne.Tensor), jnp.not_equal),
    aten.neg.default: jnp.negative,
    aten.pow.Tensor_Scalar: lambda x, power: x**power,
    aten.reciprocal.default: lambda x: 1 / x,
    aten.relu.default: nn.relu,
    aten.remainder.Scalar: jnp.remainder,
    aten.sgn.default: jnp.sign,
    aten.sigmoid.default: nn.sigmoid,
    aten.softplus.default: _softplus,
    aten.sqrt.default: jnp.sqrt,
    aten.sub.Tensor: _subtract,
    aten.tanh.default: jnp.tanh,
    aten.where.self: jnp.where,
    # along axes
    aten._log_softmax.default: lambda x, dim, half: nn.log_softmax(x, axis=dim),
    aten._softmax.default: lambda x, dim, half: nn.softmax(x, axis=dim),
    aten.all.default: jnp.all,
    aten.argmax.default: lambda x, dim=None, keep=False: jnp.argmax(x, dim, keepdims=keep),
    aten.cumsum.default: lambda x, dim: jnp.cumsum(x, axis=dim),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.logsumexp.default: _reduce(nn.logsumexp),
    aten.mean.default: _reduce(jnp.mean),
    aten.mean.dim: _reduce(jnp.mean),
    aten.sort.stable: _sorted,
    aten.sum.default: _reduce(jnp.sum),
    aten.sum.dim_IntList: _reduce(jnp.sum),
    # losses
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy,
    aten.mse_loss.default: _squared_error,
    # matrices
    aten.addmm.default: lambda bias, x, weight: x @ weight + bias,
    aten.bmm.default: jnp.matmul,
    aten.diag_embed.default: _diagonal_matrix,
    aten.diagonal.default: lambda x, offset=0, a=0, b=1: jnp.diagonal(x, offset, a, b),
    aten.dot.default: jnp.dot,
    aten.linalg_solve_triangular.default: _triangular,
    aten.mm.default: jnp.matmul,
    aten.t.default: jnp.transpose,
    aten.transpose.int: jnp.swapaxes,
    aten.tril.default: jnp.tril,
    aten.triu.default: jnp.triu,
    # shapes
    aten._unsafe_view.default: jnp.reshape,
    aten.cat.default: lambda parts, dim=0: jnp.concatenate(parts, axis=dim),
    aten.expand.default: _expand,
    aten.permute.default: jnp.transpose,
    aten.select.int: lambda x, dim, i: lax.index_in_dim(x, i, dim, keepdims=False),
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.squeeze.dim: lambda x, dim: jnp.squeeze(x, dim) if x.shape[dim] == 1 else x,
    aten.stack.default: lambda parts, dim=0: jnp.stack(parts, axis=dim),
    aten.unbind.int: lambda x, dim=0: list(jnp.moveaxis(x, dim, 0)),
    aten.unsqueeze.default: jnp.expand_dims,
    aten.view.default: jnp.reshape,
    # places
    aten.gather.default: lambda x, dim, index: jnp.take_along_axis(x, index, axis=dim),
    aten.index.Tensor: lambda x, indices: x[_at(x, indices)],
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_put.default: _index_put,
    aten.index_select.default: lambda x, dim, index: jnp.take(x, index, axis=dim),
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce,
    # tensors as they are, and new ones
    aten._to_copy.default: _cast,
    aten.alias.default: lambda x: x,
    aten.clone.default: lambda x: x,
    aten.copy.default: _copy,
    aten.detach.default: lax.stop_gradient,
    aten.empty_like.default: jnp.zeros_like,
    aten.new_zeros.default: _new,
    # the update
    aten._foreach_mul_.Tensor: lambda of, factor: [each * factor for each in of],
    aten._fused_adam_.tensor_lr: _adam,
}
