"""Another generator of jobs, with other laws and ranges than the one settings are chosen on.

It makes the same values (:class:`benchmarks.detection.generator.Made`) of the same classes, and
was written from what is known of real jobs, without a look at the other generator's code or at
the baselines: a detector that was fitted to the habits of one author's jobs is worse here.
"""

from benchmarks.detection.heldout.job import make

__all__ = ["make"]
