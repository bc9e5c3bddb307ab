"""The local engine: all nodes in one process, in a few blocks; a round of messages is one gather on the device.

It delivers what the programs say and nothing more (post.py). `drive` is the loop of every engine that hosts many nodes.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import array_api_compat as aac
import numpy as np

from ..answer import Answer
from ..block import Block, flat_block, make_blocks
from ..core.nodewise import threads
from ..memory import fitting, give_back, within
from ..messages import Checkpoint
from ..network import Network
from ..options import Options
from ..program import program
from .post import Post, Traffic

Array = Any
Observer = Callable[[list[Block], list[Checkpoint]], None]


# The part of the program that begins when something is said, or with a checkpoint; "meeting" is before all of these.
PARTS = {
    "landmarks": "landmark coordinates",
    "fingerprint": "landmark coordinates",
    "mean": "meeting",
    "covariance": "meeting",
    "data": "kernel matrices",
    "values": "separation",
    "spectrum": "separation",
    "power": "iterations",
}
ITERATIONS = "iterations"


@dataclass
class Outcome:
    """The answers of the blocks, what was sent, and how long it took."""

    answers: list[Answer]
    traffic: Traffic
    seconds: dict[str, float] = field(default_factory=dict)  # by part of the program: PARTS


def run(
    parts: Sequence[Array],
    network: Network,
    options: Options,
    observer: Observer | None = None,
    resume: Any = None,
    memory_limit: int | None = None,
) -> Outcome:
    """Run the program for all nodes; `parts` are their samples (n_j, M), of one dtype on one device.

    `observer` sees every checkpoint. `resume` is a list with a (known, state) for each block, as a checkpoint held it.
    With `memory_limit`, in bytes, landmarks grow no further than it allows, and Gram blocks that do not fit are computed again in each
    iteration. Ctrl-C during the iterations makes the
    nodes stop at their next check, with the last iterate as the result; a second one ends at once.
    """
    made = [flat_block(parts, network)] if options.sums_only else make_blocks(parts, network)
    blocks = within(made, options, memory_limit)
    return drive(blocks, fitting(blocks, options, memory_limit), observer, resume)


def drive(
    blocks: list[Block],
    options: Options,
    observer: Observer | None = None,
    resume: Any = None,
    post: Post | None = None,
    script: Callable[..., Any] = program,
) -> Outcome:
    """As `run`, for blocks already made; `post` carries their messages, and `script` may wrap the program, to time it for one."""
    post = Post(blocks) if post is None else post
    scripts = [script(block, options, None if resume is None else resume[i]) for i, block in enumerate(blocks)]
    # an iteration that overflows is noticed by the program itself; NumPy need not add its voice
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
                replies = post.answer(requests)
            else:
                interrupt["armed"] = True
                if observer is not None:
                    observer(blocks, requests)
                replies = [interrupt["asked"]] * len(blocks)
            requests, answers = _step(scripts, replies)
        seconds[part] += time.perf_counter() - since
    return Outcome(answers, post.traffic, dict(seconds))


def _step(scripts: Sequence[Any], replies: Iterable[Any]) -> tuple[list[Any], list[Answer]]:
    """Give each script its reply as soon as it is there: what they want next, or their answers. All end in the same round."""
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
    """Ctrl-C asks the program to stop once there is an iterate to keep; before that, and the second time, it interrupts."""
    flags: dict[str, bool] = defaultdict(bool)
    if threading.current_thread() is not threading.main_thread():
        yield flags
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        if flags["asked"] or not flags["armed"]:
            raise KeyboardInterrupt
        flags["asked"] = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else already handles it
        yield flags
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flags
    finally:
        signal.signal(signal.SIGINT, before)
