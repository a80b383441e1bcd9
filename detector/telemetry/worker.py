"""A source on the node itself, in a process of its own that can be killed.

Calls into the driver's and DCGM's libraries can block for ever when a GPU or the host engine is
in trouble, and a thread that is blocked there cannot be stopped. So the readers live in a child
that takes one line of JSON and answers one, by a deadline; past it the child is killed.

A child that hung, died or had nothing but an error to tell is replaced: the next one loads the
libraries anew, which may have been installed or updated meanwhile. The first replacement comes
with the next scrape, those after it ever more seldom. A child that not even a signal ends (it
hangs in the kernel) is waited for: no second one is started beside it.
"""

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

import detector
from detector.reading import Scrape
from detector.telemetry.source import SourceError, one_line

# How long the child may take to go when its input ends: it gives watches back to the engine.
_GOODBYE_S = 2.0
# How long a killed process may take to be gone; one that waits for a device does not go.
_GONE_S = 1.0
# Longer than any answer: 16 GPUs of 7 instances each are 100 kB.
_LONGEST = 16 * 1024 * 1024
# How long a child that failed again is not replaced: doubled each time, ms. Chosen: far below
# what a node's trouble lasts, and a start a minute costs a hundredth of a core.
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 1_000, 60_000

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Scrape)


class Reader(Protocol):
    """What runs inside the child."""

    def read(self, now_ms: int) -> Scrape:
        """Read every GPU once.

        Raises
        ------
        SourceError
            When there is nothing to read: the reader is closed then.
        """
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


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
        self._trouble, self._failed_ms, self._wait_ms = "", 0, 0

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        """Return one scrape; its error says so when the child failed, hung or died."""
        # A clock that was set back keeps no child from being replaced.
        if not 0 <= now_ms - self._failed_ms < self._wait_ms:
            found, trouble = self._asked(now_ms)
            if found is not None:
                self._trouble, self._wait_ms = "", 0
                return (found,)
            if self._trouble:
                self._wait_ms = min(max(_FIRST_WAIT_MS, 2 * self._wait_ms), _LONGEST_WAIT_MS)
            self._trouble, self._failed_ms = trouble, now_ms
        return (Scrape(target=self._target, asked_ms=now_ms, error=self._trouble),)

    def close(self) -> None:
        """End the child: by the end of its input, and by force if it does not go."""
        child, self._child = self._child, None
        if child is not None:
            self._drop(child, patience_s=_GOODBYE_S)

    def _asked(self, now_ms: int) -> tuple[Scrape | None, str]:
        """Return an answer, or why there is none: then the child is gone."""
        try:
            found = self._ask(now_ms)
        except _LateError:
            self._kill()
            within = f"no answer within {self._deadline_s:g} s, so the worker was killed"
            return None, f"{within}; {self._hint}"
        except _DeadError as dead:
            self._kill()
            return None, f"the worker ended ({dead}) and is started again; {self._hint}"
        if found.error:
            self.close()
            return None, found.error
        return found, ""

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
                raise _DeadError("killed before, but it hangs in the kernel")
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
        A reader from the line of settings; may raise as :meth:`Reader.read`.
    """
    # Libraries that print would write between the answers; what their objects complain of as
    # they go (a handle whose engine is gone) is nobody's news.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.unraisablehook = lambda _: None
    settings = sys.stdin.buffer.readline()
    reader: Reader | None = None
    try:
        for line in sys.stdin.buffer:
            now_ms = int(line)
            try:
                reader = reader or make(settings)
                answer = reader.read(now_ms)
            except Exception as error:
                answer = Scrape(target="", asked_ms=now_ms, error=_in_words(error))
            answers.write(_encoder.encode(answer) + b"\n")
            answers.flush()
    except BrokenPipeError:  # nobody listens any more
        return
    finally:
        if reader is not None:
            reader.close()


def _in_words(error: Exception) -> str:
    if isinstance(error, SourceError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"a mistake of ofuwatch's, or a library that it does not know ({one_line(error)}, in "
        f"{Path(where.filename).name}, line {where.lineno}); report this line"
    )


def _how(child: subprocess.Popen[bytes]) -> str:
    try:
        code = child.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        return "its answers ended"
    if code >= 0:
        return f"exit status {code}"
    names = {one.value: one.name for one in signal.Signals}
    return names.get(-code, f"signal {-code}")
