"""Why a development server did not start."""

from __future__ import annotations

from ..errors import TenxGraphError


class DevStackError(TenxGraphError):
    """A development server could not be started or is not part of this stack."""

    code = "DEVSTACK_001"


class PortTakenError(DevStackError):
    """Somebody else took the port between choosing and using it; another port may do."""

    code = "DEVSTACK_002"
