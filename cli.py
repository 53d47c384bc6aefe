"""The command line ``tenxgraph-temporal``.

Exit codes: 0 done; 1 failed, with the reason on stderr; 2 wrong usage; 3 the run failed; 4 the run was stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from .runtime.errors import TenxGraphError

PROGRAM = "tenxgraph-temporal"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        _complain(f"{' and '.join(missing)} is missing; install 'tenxgraph-temporal[cli]'")
        return 1
    from .cli_app import app

    try:
        app(args=None if arguments is None else list(arguments), prog_name=PROGRAM)
    except TenxGraphError as exc:
        _complain(str(exc))
        return 1
    except BrokenPipeError:  # `... | head`
        sys.stderr.close()
        return 1
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    return 0


def _complain(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
