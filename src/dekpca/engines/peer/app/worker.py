"""`python -m dekpca.engines.peer.app.worker`: a process of a local cluster. Runs the nodes whose configs come on standard input, in turn."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ....answer import Answer
from ...agreement import settings_of, texts
from ..storage import codec
from . import config
from .logs import log_to
from .session import Session


def work(path: Path) -> None:
    """Take part with the options beside the config, which are settled already, and write the answer there."""
    settings = config.read(path)
    log_to(sys.stderr, settings.name, True)
    options: Any = codec.read(path.parent / "options.bin")
    samples = np.load(settings.data, allow_pickle=False)
    place, facts = settings.place(settings.identity()), texts(settings_of(options))
    with Session(place, samples, facts, tell_rows=options.privacy is None) as session:
        network, _ = session.meet()
        outcome = session.run([samples], network, options)
        (answer,) = outcome.answers
        number, traffic = network.number[settings.name], outcome.traffic
        value = {
            "answer": {f.name: getattr(answer, f.name) for f in fields(Answer) if f.name != "block"},
            "traffic": {
                kind: (int(traffic.messages[kind][number]), int(sent[number])) for kind, sent in traffic.bytes.items()
            },
            "edges": {
                network.names[b]: int(sent)
                for (a, b), sent in zip(traffic.edges.tolist(), traffic.edge_bytes, strict=True)
                if a == number
            },
            "seconds": outcome.seconds,
        }
        codec.write(path.parent / f"{settings.name}.answer.bin", codec.flatten(value))
        session.finish()


def main() -> None:
    said = sys.stdout
    sys.stdout = sys.stderr  # nothing else may come between the answers
    for line in sys.stdin:
        try:
            work(Path(line.strip()))
            problem = None
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        said.write(json.dumps({"error": problem}) + "\n")
        said.flush()


if __name__ == "__main__":
    main()
