"""The ledger as a leader writes it: fenced, so that one that lost the lead changes nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from detector.incident.ledger import Action, Commit, Saved
from detector.store.ledger import Ledger


class LeaseLostError(OSError):
    """Another process leads now; what this one knows has to be loaded again."""


class Fenced:
    """Writes with the leader's fences, and refuses to go on once one of them is stale."""

    def __init__(self, ledger: Ledger, fences: Mapping[int, int]) -> None:
        self._ledger, self._fences = ledger, fences

    def load(self, shards: Collection[int]) -> Iterable[Saved]:
        """Return what each shard had committed."""
        return self._ledger.load(shards)

    def actions(self, shards: Collection[int]) -> Mapping[int, Sequence[Action]]:
        """Return what people asked for."""
        return self._ledger.actions(shards)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Write the shards, all with their fences.

        Raises
        ------
        LeaseLostError
            When another process has taken the lead since.
        """
        results = self._ledger.commit(commits, fences=self._fences)
        if any(result.stale for result in results):
            msg = "another process has taken the lead"
            raise LeaseLostError(msg)
