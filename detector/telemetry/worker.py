"""A source on the node itself, in a process of its own that can be killed.

Calls into the driver's and DCGM's libraries can block for ever when a GPU or the host engine is
in trouble, and a thread that is blocked there cannot be stopped. So the readers live in a child
that takes one line of JSON and answers one, by a deadline; past it the child is killed and the
next scrape starts another. A child that not even a signal ends (it hangs in the kernel) is
waited for: no second one is started beside it.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

import detector
from detector.reading import Scrape

# How long the child may take to go when its input ends: it gives watches back to the engine.
_GOODBYE_S = 2.0
# How long a killed process may take to be gone; one that waits for a device does not go.
_GONE_S = 1.0
# Longer than any answer: 16 GPUs of 7 instances each are 100 kB.
_LONGEST = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Scrape)


class Reader(Protocol):
    """What runs inside the child."""

    def read(self, now_ms: int) -> Scrape:
        """Read every GPU once; what goes wrong is the scrape's error."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class Unavailable:
    """A reader that can only say why it is none."""

    def __init__(self, why: str, *, target: str) -> None:
        self._why, self._target = why, target

    def read(self, now_ms: int) -> Scrape:
        """Return the reason."""
        return Scrape(target=self._target, asked_ms=now_ms, error=self._why)

    def close(self) -> None:
        """Nothing is held."""


class _LateError(Exception):
    """No answer by the deadline."""


class _DeadError(Exception):
    """The child ended; how."""


class NodeSource:
    """Reads the GPUs of this node through a killable child.

    Parameters
    ----------
    module
        What to run: ``python -m module``, ending in :func:`serve`.
    settings
        Handed to the child as its first line.
    target
        What messages call the target.
    deadline_s
        For one scrape, the start of the child included.
    hint
        What to do when the deadline passes, for the message.
    settle_s
        After so long a second scrape has what the first could not have: counters that are
        differences of two samples.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *,
        settings: Mapping[str, object],
        target: str,
        deadline_s: float,
        hint: str,
        settle_s: float,
    ) -> None:
        self.name = name
        self.settle_s = settle_s
        self._module, self._settings = module, settings
        self._target, self._deadline_s, self._hint = target, deadline_s, hint
        self._child: subprocess.Popen[bytes] | None = None
        self._doomed: subprocess.Popen[bytes] | None = None

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        """Return one scrape; its error says so when the child hung or died."""
        try:
            return (self._ask(now_ms),)
        except _LateError:
            error = (
                f"no answer within {self._deadline_s:g} s; the worker was killed. {self._hint}"
            )
        except _DeadError as dead:
            error = f"the worker ended ({dead}); another is started with the next scrape"
        self._kill()
        return (Scrape(target=self._target, asked_ms=now_ms, error=error),)

    def close(self) -> None:
        """End the child: by the end of its input, and by force if it does not go."""
        child, self._child = self._child, None
        if child is not None:
            self._drop(child, patience_s=_GOODBYE_S)

    def _ask(self, now_ms: int) -> Scrape:
        until = time.monotonic() + self._deadline_s
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(b"%d\n" % now_ms)
            child.stdin.flush()
        except OSError:
            raise _DeadError(_how(child)) from None
        line = self._line(child, until)
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise _DeadError(f"its answer is none: {error}") from None

    def _line(self, child: subprocess.Popen[bytes], until: float) -> bytes:
        assert child.stdout is not None
        descriptor, got = child.stdout.fileno(), bytearray()
        while not got.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise _LateError
            chunk = os.read(descriptor, 1 << 16)
            if not chunk or len(got) > _LONGEST:
                raise _DeadError(_how(child))
            got += chunk
        return bytes(got)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._doomed is not None:
            if self._doomed.poll() is None:
                raise _DeadError("killed before, but it hangs in the kernel: see dmesg")
            self._doomed = None
        root = str(Path(detector.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        self._child = subprocess.Popen(
            # -P: the working directory must not shadow the bindings' flat module names.
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the collector, which then ends the child
        )
        assert self._child.stdin is not None
        self._child.stdin.write(_encoder.encode(self._settings) + b"\n")
        return self._child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._drop(child, patience_s=_GONE_S)

    def _drop(self, child: subprocess.Popen[bytes], *, patience_s: float) -> None:
        for pipe in (child.stdin, child.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # what was still to be written goes nowhere
                continue
        for wait_s in (patience_s, _GONE_S):
            try:
                child.wait(wait_s)
            except subprocess.TimeoutExpired:
                child.kill()
            else:
                return
        self._doomed = child


def serve(make: Callable[[bytes], Reader]) -> None:
    """Be the child: settings, then a time a line; an answer each; until the input ends.

    Parameters
    ----------
    make
        A reader from the line of settings; must not fail for what a scrape can report.
    """
    # Libraries that print would write between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    reader = make(sys.stdin.buffer.readline())
    try:
        for line in sys.stdin.buffer:
            answers.write(_encoder.encode(reader.read(int(line))) + b"\n")
            answers.flush()
    except BrokenPipeError:  # nobody listens any more
        return
    finally:
        reader.close()


def _how(child: subprocess.Popen[bytes]) -> str:
    try:
        code = child.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        return "its answers ended"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
