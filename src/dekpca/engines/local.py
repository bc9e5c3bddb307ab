"""The local engine: all nodes in one process, in a few blocks; a round of messages is one gather on the device.

delivery.py delivers the messages of the programs. `drive` is the loop of every engine with many nodes in a process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import array_api_compat as aac
import numpy as np

from ..answer import Answer
from ..block import Block, flat_block
from ..core.chunks import threads
from ..memory import fitting, give_back, within
from ..messages import Checkpoint
from ..options import Options
from ..plan import Observer, Outcome, Plan
from ..program import program
from .checkpoints import keeping
from .delivery import CollectiveDelivery, Delivery
from .tree import over_tree

# The part of the program that begins with a message of this kind, or with a checkpoint; "meeting" comes first.
PARTS = {
    "columns": "columns",
    "axes": "landmarks",
    "clusters": "landmarks",
    "landmarks": "landmarks",
    "fingerprint": "landmarks",
    "moments": "moments",
    "judge": "judging",
    "mean": "meeting",
    "covariance": "meeting",
    "data": "kernel matrices",
    "values": "separation",
    "spectrum": "separation",
    "power": "iterations",
}
ITERATIONS = "iterations"


def run(plan: Plan, observer: Observer | None = None) -> Outcome:
    """Run the program for all nodes.

    A memory limit bounds the number of landmarks; Gram blocks that do not fit are recomputed in each iteration.
    Ctrl-C during the iterations stops the nodes at their next check, with the last iterate as the result; a second
    one ends at once.
    """
    script = program
    if plan.options.sealed:
        blocks = plan.blocks(apart=True)
        simulate_sealers(blocks)
        script = over_tree(program)  # the same messages as between peers
    else:
        apart = plan.options.owners_apart  # as between peers: a node's terms leave it one by one
        blocks = [flat_block(plan.parts, plan.network)] if plan.options.sums_only and not apart else plan.blocks(apart)
    blocks = within(blocks, plan.options, plan.memory_limit)
    options, delivery = fitting(blocks, plan.options, plan.memory_limit), CollectiveDelivery(blocks)
    with keeping(plan, observer) as begin:
        return drive(blocks, options, *begin(delivery), delivery, script)


def simulate_sealers(blocks: Sequence[Block]) -> None:
    """Each node gets its own key for this run. All keys are in one process: this simulates the messages, and protects nothing."""
    from ..privacy.masks import sealers
    from ..privacy.records import new_run

    if not aac.is_numpy_array(blocks[0].samples):
        raise ValueError(
            f"secure sums of {type(blocks[0].samples).__name__}: they are integers of NumPy; give NumPy arrays"
        )
    made = sealers(blocks[0].network.names, new_run())
    for block in blocks:
        block.sealer = made[block.names[0]]


def drive(
    blocks: list[Block],
    options: Options,
    observer: Observer | None = None,
    resume: Any = None,
    delivery: Delivery | None = None,
    script: Callable[..., Any] = program,
) -> Outcome:
    """As `run`, for blocks already made, with a (known, state) for each of them in `resume`.

    `delivery` carries their messages; `script` is the program, or wraps it (over_tree, where the delivery has no reductions).
    """
    delivery = CollectiveDelivery(blocks) if delivery is None else delivery
    scripts = [script(block, options, None if resume is None else resume[i]) for i, block in enumerate(blocks)]
    # the program itself detects overflow; no warnings of NumPy
    on_host = aac.is_numpy_array(blocks[0].samples)  # other libraries have threads of their own
    n_items = sum(block.samples.shape[1] if block.flat else block.n_nodes for block in blocks) if on_host else 0
    with _interrupts() as interrupt, np.errstate(over="ignore", invalid="ignore", divide="ignore"), threads(n_items):
        seconds: dict[str, float] = defaultdict(float)
        part, since = "meeting", time.perf_counter()
        requests, answers = _step(scripts, [None] * len(scripts))
        while requests:
            give_back(blocks)
            now = time.perf_counter()
            seconds[part] += now - since
            since, part = now, PARTS.get(requests[0].kind, part) if hasattr(requests[0], "kind") else ITERATIONS
            replies: Iterable[Any]
            if not isinstance(requests[0], Checkpoint):
                replies = delivery.answer(requests)
            else:
                interrupt["armed"] = True
                if observer is not None:
                    observer(blocks, requests)
                replies = [interrupt["asked"]] * len(blocks)
            requests, answers = _step(scripts, replies)
        seconds[part] += time.perf_counter() - since
    return Outcome(answers, delivery.traffic, dict(seconds))


def _step(scripts: Sequence[Any], replies: Iterable[Any]) -> tuple[list[Any], list[Answer]]:
    """Send each script its reply as soon as it arrives; returns their next requests, or their answers. All end in the same round."""
    requests, answers = [], []
    for script, reply in zip(scripts, replies, strict=True):
        try:
            requests.append(script.send(reply))
        except StopIteration as end:
            answers.append(end.value)
    if requests and answers:
        raise RuntimeError("the nodes of one network do not end together")
    return requests, answers


@contextmanager
def _interrupts() -> Iterator[dict[str, bool]]:
    """Ctrl-C requests a stop if there is an iterate to keep; before that, and the second time, it interrupts."""
    flags: dict[str, bool] = defaultdict(bool)
    if threading.current_thread() is not threading.main_thread():
        yield flags
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        if flags["asked"] or not flags["armed"]:
            raise KeyboardInterrupt
        flags["asked"] = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # another handler is installed
        yield flags
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flags
    finally:
        signal.signal(signal.SIGINT, before)
