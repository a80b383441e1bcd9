"""Which jobs have a history: whoever wrote ``ofu:{<job>}:s`` need not register anything."""

from detector.series import Duration
from detector.store.entries import entry_ms, safe
from detector.store.keys import Keys
from detector.store.rejects import Rejects
from detector.store.server import Reply, Server

_COUNT = 2000  # keys a SCAN step looks at: about 1 ms of the server's time

# Steps in one look after the first scan: a keyspace shared with millions of other keys is
# walked over several ticks (64 steps are 128,000 keys, measured 60 to 90 ms).
_STEPS = 64


class Discovery:
    """Finds the streams of all jobs by SCAN.

    Attributes
    ----------
    keys_of
        Job -> its samples key, of all jobs known so far.
    newest
        Job -> time of the newest entry seen, ms; -1 for none.
    """

    def __init__(
        self, server: Server, keys: Keys, rejects: Rejects, *, every: Duration
    ) -> None:
        self._server = server
        self._keys = keys
        self._rejects = rejects
        self._every = every
        self._next_ms: int | None = None
        self._cursor: bytes | int = 0
        self._found: set[bytes] = set()
        self._strange: set[bytes] = set()
        self.keys_of: dict[str, bytes] = {}
        self.newest: dict[str, int] = {}

    def look(self, now_ms: int) -> bool:
        """Scan if it is time to; return whether a scan was completed by this call."""
        first = self._next_ms is None
        # A clock that was set back must not end discovery until it has caught up.
        waiting = self._next_ms is not None and 0 < self._next_ms - now_ms <= self._every
        if waiting and not self._cursor:
            return False
        for _ in range(2**63 if first else _STEPS):
            reply = self._server.run(
                "SCAN", self._cursor, "MATCH", self._keys.pattern, "COUNT", _COUNT
            )
            self._cursor = int(reply[0])
            self._found.update(reply[1])
            if not self._cursor:
                self._next_ms = now_ms + self._every
                self._settle()
                return True
        return False

    def add(self, job: str) -> None:
        """Make a job known that this process writes itself."""
        if job not in self.keys_of:
            self.keys_of[job] = self._keys.samples(job).encode()
            self.newest.setdefault(job, -1)

    def strangers(self) -> tuple[str, ...]:
        """Return the keys that look like histories and name no job, as safe text."""
        return tuple(
            safe(key) for key in sorted(self._strange) if self._keys.job_of(key) is None
        )

    def refuse(self, job: str, kind: bytes) -> None:
        """Forget a job whose key turned out to hold another type, until it holds a stream."""
        key = self.keys_of.pop(job)
        self.newest.pop(job, None)
        self._strange.add(key)
        self._rejects.add(job, safe(key), "wrong_type", safe(kind))

    def _settle(self) -> None:
        """Make what the scan found what is known: types of new keys checked, gone ones gone."""
        found, self._found = self._found, set()
        known = set(self.keys_of.values())
        fresh = sorted(found - known)
        for job, key in list(self.keys_of.items()):
            if key not in found:
                del self.keys_of[job]
                self.newest.pop(job, None)
        types = self._server.pipeline(["TYPE", key] for key in fresh)
        tails = self._server.pipeline(["XREVRANGE", key, "+", "-", "COUNT", 1] for key in fresh)
        strange = set()
        for key, kind, tail in zip(fresh, types, tails, strict=True):
            if not self._admit(key, kind, tail):
                strange.add(key)
        self._strange = strange

    def _admit(self, key: bytes, kind: bytes, tail: Reply) -> bool:
        job = self._keys.job_of(key)
        if kind == b"none":  # expired since the scan saw it
            return True
        if job is None or kind != b"stream":
            if key not in self._strange:  # told once, not at every scan
                reason = "bad_key" if job is None else "wrong_type"
                self._rejects.add(job or "", safe(key), reason, safe(kind))
            return False
        self.keys_of[job] = key
        self.newest.setdefault(job, -1)
        if isinstance(tail, list) and tail:
            self.newest[job] = entry_ms(tail[0][0])
        return True
