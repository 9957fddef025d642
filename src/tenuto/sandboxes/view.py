"""What a held execution sees: the system and its interpreter to read, its own folders to change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tenuto.core.confinement import View
from tenuto.core.errors import InvalidInput
from tenuto.core.specs import Sandbox

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store",
)  # fmt: skip

# Of /etc only what programs need to run at all: no keys, no shadow, no service's secrets.
_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "crypto-policies", "debian_version",
    "gai.conf", "group", "host.conf", "hostname", "hosts", "inputrc", "ld.so.cache", "ld.so.conf",
    "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust",
    "pki/tls/cert.pem", "pki/tls/certs", "profile", "protocols", "resolv.conf", "services",
    "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip

# A working folder that holds one of these would hold the whole machine.
_TOO_MUCH = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/usr", "/var")

_KEPT = (
    "COLORTERM", "DENO_NO_UPDATE_CHECK", "LANG", "LANGUAGE", "LOGNAME", "NO_COLOR", "PATH",
    "PYTHONUNBUFFERED", "SHELL", "TERM", "TZ", "USER",
)  # fmt: skip

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HOPS = 20


def inside(path: str, folder: str) -> bool:
    """Tell whether a path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def state_folders(home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return where this user's Tenuto keeps what nobody held may see: state, tools, settings."""
    # those that are not there yet too: what a program makes in their place would be believed
    return tuple(dict.fromkeys(map(os.path.realpath, (home, *_named(environ)))))


def check_links(environ: Mapping[str, str], write: Iterable[str]) -> None:
    """Refuse a writable folder with a link in it that leads to our own: it could be replaced."""
    for place in _named(environ):
        path = place
        while path != os.path.dirname(path):
            folder = os.path.realpath(os.path.dirname(path))
            if os.path.islink(path) and any(inside(folder, one) for one in write):
                raise InvalidInput(
                    f"{path} leads to Tenuto's own state, and could be replaced from inside",
                    "use another folder, or a folder in place of that link",
                )
            path = os.path.dirname(path)


def _named(environ: Mapping[str, str]) -> list[str]:
    user = environ.get("HOME") or os.path.expanduser("~")
    places: list[str] = []
    for variable, default in (
        ("XDG_STATE_HOME", ".local/state"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_CONFIG_HOME", ".config"),
    ):
        places.append(os.path.join(environ.get(variable) or os.path.join(user, default), "tenuto"))
    if other := environ.get("TENUTO_HOME"):
        places.append(os.path.abspath(other))
    return places


def view_of(
    argv: tuple[str, ...], cwd: str, wish: Sandbox, hide: tuple[str, ...], user_home: str
) -> View:
    """Return what an execution is to see, or raise InvalidInput for what it can never be given."""
    write = [_given(path, cwd, hide, "writable") for path in (cwd, *wish.writable)]
    for path in write:
        if path in _TOO_MUCH:
            raise InvalidInput(
                f"{path} would be writable: too much for a sandbox",
                "name a working directory of its own with --cwd",
            )
    execute = [path for path in _SYSTEM if os.path.isdir(path) and os.listdir(path)]
    execute += [path for name in _ETC if os.path.exists(path := f"/etc/{name}")]
    for path in _needed(argv, user_home, hide, write):
        if not any(inside(path, other) for other in (*execute, *write)):
            execute.append(path)
    execute += [_given(path, cwd, hide, "readable") for path in wish.readable]
    return View(tuple(dict.fromkeys(execute)), tuple(dict.fromkeys(write)), hide)


def _given(path: str, cwd: str, hide: tuple[str, ...], what: str) -> str:
    full = os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))
    if not os.path.exists(full):
        raise InvalidInput(f"{path} is to be {what} and does not exist", "check the path")
    if any(inside(full, place) for place in hide):
        raise InvalidInput(
            f"{path} holds Tenuto's own state: nothing in a sandbox may see it",
            "use another folder",
        )
    return full


def _needed(
    argv: tuple[str, ...], user_home: str, hide: tuple[str, ...], write: list[str]
) -> list[str]:
    """Return what the program itself is made of: where it is installed, and our runner for it."""
    real = os.path.dirname(os.path.realpath(argv[0]))
    found: list[str] = []
    for hop in _hops(argv[0]):
        prefix = _prefix(hop)
        too_much = prefix == os.path.realpath(user_home) or any(inside(h, prefix) for h in hide)
        found.append(hop if too_much or prefix == "/" else prefix)
        writable = any(inside(os.path.realpath(prefix), folder) for folder in write)
        for home in _base_of(os.path.join(prefix, "pyvenv.cfg")):
            # one that was held before could have written there what it wants to see next
            if not writable or os.path.realpath(home) == real:
                found.append(os.path.dirname(home))
    found += [os.path.dirname(word) for word in argv[1:] if inside(word, _PACKAGE)]
    return found


def _hops(path: str) -> Iterable[str]:
    """Yield a program's path and everything that it links to."""
    for _ in range(_HOPS):
        yield path
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    yield os.path.realpath(path)


def _prefix(program: str) -> str:
    """Return the folder that a program is installed under; itself if it stands alone."""
    folder = os.path.dirname(program)
    above = os.path.dirname(folder)
    if (
        os.path.basename(folder) == "shims"
    ):  # of a version manager, which keeps the rest beside them
        return above
    if os.path.basename(folder) in ("bin", "sbin") and any(
        os.path.exists(os.path.join(above, name))
        for name in ("lib", "lib64", "pyvenv.cfg", "include")
    ):
        return above
    return program


def _base_of(settings: str) -> list[str]:
    """Return where the Python is that a virtual environment was made from."""
    try:
        with open(settings, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file]
    except OSError:
        return []
    return [value.strip() for key, _, value in pairs if key.strip() == "home"]


def environment(
    environ: Mapping[str, str], given: Iterable[str], view: View, home: str, cwd: str
) -> dict[str, str]:
    """Return the variables it gets: the harmless ones, and those given for it. No keys, no tokens."""
    named = set(given)
    kept = {
        name: value
        for name, value in environ.items()
        if name in named or name in _KEPT or name.startswith("LC_")
    }
    seen = (*view.execute, *view.write)
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    # a folder that it cannot look into would hide the programs in those that come after
    visible = [folder for folder in folders if any(inside(folder, one) for one in seen)]
    own = {"HOME": home, "TMPDIR": home, "PWD": cwd, "PATH": os.pathsep.join(visible)}
    return kept | {name: value for name, value in own.items() if name not in named}
