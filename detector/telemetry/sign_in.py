"""How a source over HTTP is got into, as its table in ``config.toml`` says."""

from collections.abc import Iterator

import msgspec

from detector.series import refuse


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``[[source]]`` that is about credentials and certificates.

    Attributes
    ----------
    username, password_file, password_env
        For basic authentication. Files of secrets are read anew at each round.
    bearer_file, bearer_env
        A token instead.
    ca_file
        Certificates to trust for https instead of the system's.
    verify
        False takes any certificate.
    """

    name: str
    username: str = ""
    password_file: str = ""
    password_env: str = ""
    bearer_file: str = ""
    bearer_env: str = ""
    ca_file: str = ""
    verify: bool = True

    def __post_init__(self) -> None:
        """Refuse ways to sign in that are none, or two."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        """Yield all that is wrong, each a line that begins with its key where it has one."""
        password = bool(self.password_file or self.password_env)
        if bool(self.username) != password:
            yield "username and password_file (or password_env) go together"
        elif password and (self.bearer_file or self.bearer_env):
            yield "username: either that and a password, or a bearer token, not both"
