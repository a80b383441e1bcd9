"""The stand-in's front, as pydcgm is the real bindings'."""

import dcgm_structs
from DcgmFieldGroup import DcgmFieldGroup
from DcgmGroup import DcgmGroup
from DcgmHandle import DcgmHandle
from DcgmSystem import DcgmSystem


class DcgmException(Exception):
    """Misuse."""
