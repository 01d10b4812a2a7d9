"""NumPy's matrix products on one thread, where they are small."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

#: Decorator. A mixture of some thousand rows is fitted by tens of thousands of products that take
#: microseconds: a second thread doubles their time where its core is free, and takes it four times
#: where it is not.
on_one_thread = threadpool_limits.wrap(limits=1, user_api="blas")
