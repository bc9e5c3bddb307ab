"""Starts node processes, gives them signals, reaps them; and takes all of them along when it ends.

A process of its own that has imported dekpca once, so that a node starts as a fork in milliseconds rather than as an interpreter in
seconds (`fresh` starts a new interpreter all the same). It reads orders from standard input and reports on standard output, a line of
JSON each. It alone reaps, so a signal never goes to a process number that belongs to somebody else by now.

    {"do": "start", "key": K, "argv": [...], "out": FILE, "fresh": bool, "file_limit": BYTES or null, "open_files": N or null,
     "stuck": how or null}  ->  {"key": K, "pid": P}
    {"do": "signal", "key": K, "signal": N}
                                      when a process ends  ->  {"key": K, "code": C, "peak": KIB}   (C < 0: by signal -C)
    standard input closes: all processes are killed
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import select
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


def serve() -> list[str] | None:
    """Until standard input closes; in a forked child returns the arguments it is to run with."""
    children: dict[int, int] = {}  # pid -> key
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *unused: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _report({"ready": True})
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            while _read(wake_read):
                pass
            _reap(children)
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if order["do"] == "start":
                    pid = os.fork()
                    if pid == 0:
                        return _become(order)
                    children[pid] = order["key"]
                    _report({"key": order["key"], "pid": pid})
                else:
                    for pid, key in children.items():
                        if key == order["key"]:
                            os.kill(pid, order["signal"])
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    return None


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            key = children.pop(pid)
            _report({"key": key, "code": os.waitstatus_to_exitcode(status), "peak": usage.ru_maxrss})


def _report(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _become(order: dict[str, Any]) -> list[str]:
    """The child: its own files, limits and signals."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.closerange(3, 4096)
    if order.get("file_limit") is not None:
        _write_elsewhere()
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    if order.get("open_files") is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"],) * 2)
    if order.get("stuck") is not None:
        import stuck

        stuck.hang(order["stuck"])
    argv = [str(a) for a in order["argv"]]
    if order.get("fresh"):
        os.execve(sys.executable, [sys.executable, "-m", "dekpca.cli", *argv], os.environ)
    return argv


def _write_elsewhere() -> None:
    """What this process says goes through a pipe to one that has no limit: the log is not the disk that is to be full."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        while chunk := os.read(read, 1 << 16):
            os.write(1, chunk)
        os._exit(0)
    os.close(read)
    for target in (1, 2):
        os.dup2(write, target)
    os.close(write)


if __name__ == "__main__":
    os.setpgid(0, 0)  # Ctrl-C at the terminal is for the supervisor, which then closes our input
    import sklearn.cluster  # noqa: F401

    import dekpca.cli
    import dekpca.data
    import dekpca.estimator

    arguments = serve()
    if arguments is not None:
        sys.argv = ["dekpca", *arguments]
        code = 0
        try:
            dekpca.cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        # The interpreter takes a forked process apart for as long as a whole run takes, and on a busy machine for seconds: all but that is done.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
