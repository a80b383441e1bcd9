"""``[slurm]`` and ``[kubernetes]`` of ``config.toml``, apart from what is slow to load."""

from typing import Literal

import msgspec

from detector.series import Duration, below, refuse


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[slurm]``: how it is learnt which job has which GPUs.

    Attributes
    ----------
    via
        ``squeue`` (the command, on this host), ``slurmrestd`` (HTTP), or "" for not at all.
    squeue, sacct
        The commands, by path where they are not on PATH; ``sacct`` may be "" where there is no
        accounting: then runs that ended before this process began are continued by none.
    url
        Where slurmrestd is: ``http://``, ``https://`` or ``unix:///run/slurmrestd.socket``.
    version
        Its interface, such as ``v0.0.42``; "" finds the newest that it serves.
    user
        Whom the token is of, where it is no token for one user (``X-SLURM-USER-NAME``).
    token_file, token_env
        Where the JSON Web Token is (``scontrol token``), read anew at each question.
    ca_file
        Certificates to trust for https instead of the system's.
    interval
        How often it is asked. As often as counters are read, a change of hands between two
        readings is known at once; a longer one spares a busy controller, and where no label
        names jobs, readings since the last answer count for whom it named.
    timeout
        How long one answer may take.
    keep
        How long the last answer counts when there is no new one.
    past
        How far back runs are looked for that a new one may continue.
    """

    via: Literal["", "squeue", "slurmrestd"] = ""
    squeue: str = "squeue"
    sacct: str = "sacct"
    url: str = ""
    version: str = ""
    user: str = ""
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    interval: Duration = Duration.parse("10s")
    # chosen: a busy controller answers in a second or two; a slow one must not stop readings
    timeout: Duration = Duration.parse("8s")
    # chosen: a controller restarts in minutes, and jobs last longer; later a guess is worse
    keep: Duration = Duration.parse("10m")
    # chosen: a job that died on a Friday is continued on a Monday
    past: Duration = Duration.parse("3d")

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        wrong = _too_small(self)
        if self.via == "slurmrestd" and not self.url.startswith(
            ("http://", "https://", "unix:///")
        ):
            wrong.append(
                "url must say where slurmrestd is: http://host:6820, https://host:6820 or "
                f"unix:///run/slurmrestd.socket, not {self.url!r}"
            )
        refuse(wrong)


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[kubernetes]``: how it is learnt which job a pod is of.

    Attributes
    ----------
    url
        ``in-cluster`` in a pod with a service account, the API server's ``https://...``, or ""
        for not at all.
    token_file
        File with a bearer token, read anew at each question; "" in a cluster is the pod's own.
    ca_file
        Certificates to trust; "" in a cluster is the pod's own, elsewhere the system's.
    namespace
        One namespace, where the account may read no other; "" for all.
    resources
        What a pod asks for when it has GPUs: all resources that begin so.
    interval, timeout, keep
        How often the pods are listed, how long one answer may take, and how long the last list
        counts when there is no new one. A longer interval spares a busy API server; where no
        label names pods, readings since the last list count for whom it named.
    """

    url: str = ""
    token_file: str = ""
    ca_file: str = ""
    namespace: str = ""
    resources: tuple[str, ...] = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu")
    # as often as counters are read: then a change of hands is known before they are counted
    interval: Duration = Duration.parse("10s")
    timeout: Duration = Duration.parse("8s")
    # chosen: as Slurm's
    keep: Duration = Duration.parse("10m")

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        wrong = _too_small(self)
        if self.url not in ("", "in-cluster") and not self.url.startswith(
            ("https://", "http://")
        ):
            wrong.append(f'url must be "in-cluster" or https://host:6443, not {self.url!r}')
        refuse(wrong)


def _too_small(settings: SlurmSettings | KubernetesSettings) -> list[str]:
    return [
        *below("interval", settings.interval, Duration(1_000)),
        *below("timeout", settings.timeout, Duration(100)),
        *below("keep", settings.keep, Duration(1_000)),
    ]
