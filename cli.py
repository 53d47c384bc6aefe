"""The command line ``tenxgraph-temporal``.

Exit codes: 0 done; 1 failed, with the reason on stderr; 2 wrong usage; 3 the run failed; 4 the run was stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from .runtime.errors import TenxGraphError

PROGRAM = "tenxgraph-temporal"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. In the program's own process it ends the process instead."""
    code = _run(arguments)
    if arguments is None and _is_our_process():
        _leave(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
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


def _is_our_process() -> bool:
    """Whether the process is ``tenxgraph-temporal`` or ``python -m tenxgraph_temporal.cli``, and no caller's."""
    script = sys.modules["__main__"]
    spec = getattr(script, "__spec__", None)
    return (spec is not None and spec.name == __spec__.name) or Path(getattr(script, "__file__", "")).stem == PROGRAM


def _leave(code: int) -> NoReturn:
    """End the process without finalizing the interpreter.

    Threads of Temporal's SDK may still be letting go of Python objects then, and Python aborts the process for it
    (``PyGILState_Release``, exit code 134): seen in every fifth run of a short command on a busy machine, and
    reported as temporalio/sdk-python#300.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _complain(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
