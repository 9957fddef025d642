"""Starting a deno process that may do nothing: no permissions by its own rules, nor by the system's."""

from __future__ import annotations

import base64
import errno
import json
import os
import resource
import signal

from tenuto.codemode.hardening import drop_root
from tenuto.keeper import landlock, linux, seccomp

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from typing import NoReturn

CHANNEL_FD = 3
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "deno")
_SURFACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "surface")
_PARTS = ("kit", "wire", "errors", "inspect", "console", "run", "schema", "tools")
ENVIRONMENT = {
    "DENO_DIR": "/dev/null/none",
    "DENO_NO_UPDATE_CHECK": "1",  # it would ask its makers
    "HOME": "/",
    "NO_COLOR": "1",
}
_BASE = 544 << 20  # what the runtime itself reserves as private memory, for code mostly
_FILES = 64
_READABLE = (
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom",
    "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/sys/vm", "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
)  # fmt: skip
_LIBRARIES = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store")
_NODE = (
    "_http_agent _http_common _http_outgoing _http_server _stream_duplex _stream_passthrough "
    "_stream_readable _stream_transform _stream_writable _tls_common _tls_wrap assert assert/strict "
    "async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns "
    "dns/promises domain events fs fs/promises http http2 https inspector inspector/promises module "
    "net os path path/posix path/win32 perf_hooks process punycode querystring readline "
    "readline/promises repl sea sqlite stream stream/consumers stream/promises stream/web "
    "string_decoder sys test test/reporters timers timers/promises tls trace_events tty url util "
    "util/types v8 vm wasi worker_threads zlib"
)

# What a runtime with threads and a compiler calls. Any other call fails: no sockets but pairs, no
# processes but threads, nothing that changes a file. Programs are run by the first step only, and
# Landlock knows which.
_CALLS = (
    "access", "arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close",
    "dup", "dup2", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2",
    "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fcntl", "fstat", "fstatfs",
    "futex", "getcwd", "getdents64", "getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom",
    "getrusage", "gettid", "gettimeofday", "getuid", "lseek", "lstat", "madvise", "membarrier", "mmap",
    "mprotect", "mremap", "munmap", "nanosleep", "newfstatat", "open", "openat", "pipe2", "pkey_alloc",
    "pkey_free", "pkey_mprotect", "poll", "ppoll", "prctl", "pread64", "read", "readlink", "readlinkat",
    "readv", "recvfrom", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "rt_sigtimedwait", "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_yield",
    "set_robust_list", "set_tid_address", "sigaltstack", "socketpair", "stat", "statfs", "statx",
    "sysinfo", "tgkill", "time", "uname", "write", "writev",
)  # fmt: skip
_THREAD = 0x10000
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # about terminals and blocking, no more
_RULES = (
    seccomp.rule("clone", seccomp.ALLOW, seccomp.when(0, _THREAD, _THREAD)),
    seccomp.rule(
        "clone3", seccomp.fail(errno.ENOSYS)
    ),  # its flags cannot be seen; clone is used then
    seccomp.rule("prlimit64", seccomp.ALLOW, seccomp.when(0, 0)),
    *(seccomp.rule("ioctl", seccomp.ALLOW, seccomp.when(1, which)) for which in _IOCTLS),
    seccomp.rule("ioctl", seccomp.fail(errno.ENOTTY)),
)


class Deno:
    """A process that waits for a job: its line of input, and where it asks us, and dies."""

    def __init__(self, pid: int, program: str, memory: int, into: int, errors: int) -> None:
        self.pid = pid
        self.program = program
        self.memory = memory
        self.into = into
        self.errors = errors
        self.level = ""
        self.missing: list[str] = []


def read_surface() -> bytes:
    """Return the first line that a process is sent: all that it becomes, in parts."""
    parts: list[list[str]] = []
    for folder, names in ((_FOLDER, ("engine",)), (_SURFACE, _PARTS)):
        for name in names:
            with open(os.path.join(folder, f"{name}.js"), encoding="utf-8") as file:
                parts.append([name, file.read()])
    return json.dumps(parts).encode() + b"\n"


def arguments(memory: int) -> list[str]:
    """Return what deno is called with; no module can be had but those made of text."""
    refused = "data:text/javascript,throw new TypeError('there are no modules here')"
    modules = {"imports": {f"node:{name}": refused for name in _NODE.split()}}
    with open(os.path.join(_FOLDER, "boot.js"), "rb") as file:
        boot = _as_address("text/javascript", file.read())
    heap = max(16, memory >> 20)
    return [
        "deno", "run", "--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm",
        "--no-code-cache", "--quiet", f"--v8-flags=--max-old-space-size={heap}",
        "--import-map", _as_address("application/json", json.dumps(modules).encode()), boot,
    ]  # fmt: skip


def _as_address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def make_filter() -> bytes:
    """Return the filter for the process; empty where none can be made."""
    if not seccomp.available():
        return b""
    return seccomp.allow_only(_CALLS, _RULES, otherwise=seccomp.fail())


def start(
    program: str, memory: int, surface: bytes, filtered: bytes, off: tuple[str, ...] = ()
) -> Deno:
    """Start the process and send it the surface; it then waits for a job.

    What files it may reach is all that this process itself may reach from here on, too: so they are
    in one domain of Landlock, within which it may be killed.
    """
    # Opened now: another user may not be able to find it.
    executable = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    plain = os.pread(executable, 4, 0) == b"\x7fELF"
    in_read, into = os.pipe2(os.O_CLOEXEC)
    errors, error_write = os.pipe2(os.O_CLOEXEC)
    report, report_write = os.pipe2(os.O_CLOEXEC)
    words = arguments(memory)
    stem = os.getpid()
    held, missing = _restrict(program, off)
    pid = os.fork()
    if pid == 0:
        _become(
            executable if plain else program,
            words,
            (in_read, CHANNEL_FD, error_write),
            report_write,
            (stem, program, memory, filtered, off),
        )
    for fd in (executable, in_read, error_write, report_write):
        os.close(fd)
    deno = Deno(pid, program, memory, into, errors)
    told = b""
    while part := os.read(report, 65536):
        told += part
    os.close(report)
    result = json.loads(told)
    if "failed" in result:
        raise OSError(result["failed"])
    deno.level = "+".join(("permissions", *held, *result["held"], "rlimits"))
    deno.missing = [*missing, *result["missing"]]
    send(deno, surface)
    return deno


def _restrict(program: str, off: tuple[str, ...]) -> tuple[list[str], list[str]]:
    try:
        if "landlock" in off:
            raise OSError("turned off")
        landlock.restrict(read=[*_READABLE, "/proc"], execute=[*_LIBRARIES, program])
    except OSError as error:
        return [], [f"landlock ({error.strerror or error})"]
    return ["landlock"], []


def send(deno: Deno, data: bytes) -> None:
    """Write to the process; its end shows elsewhere."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(deno.into, rest) :]
    except OSError:
        return


def _become(
    executable: int | str,
    words: list[str],
    stdio: tuple[int, int, int],
    report: int,
    wish: tuple[int, str, int, bytes, tuple[str, ...]],
) -> NoReturn:
    """Give up everything and be deno; only for a process just forked."""
    stem, program, memory, filtered, off = wish
    try:
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        os.chdir("/")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for which, bound in (
            (resource.RLIMIT_DATA, _BASE + memory),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, _FILES),
        ):
            resource.setrlimit(which, (bound, bound))
        told = _confine(program, filtered, off, stem)
        os.write(report, json.dumps(told).encode())
        environment = dict(ENVIRONMENT)
        if "TZ" in os.environ:
            environment["TZ"] = os.environ["TZ"]
        if filtered and "seccomp" not in off:
            seccomp.install(filtered)
        os.execve(executable, words, environment)
    except BaseException as error:
        os.write(report, json.dumps({"failed": f"deno cannot be started: {error}"}).encode())
    finally:
        os._exit(127)


def _confine(
    program: str, filtered: bytes, off: tuple[str, ...], stem: int
) -> dict[str, list[str]]:
    landlock.no_new_privs()
    missing = drop_root(off)
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != stem:
        os._exit(127)
    if "landlock" not in off:
        # Only its own folder in /proc: those of others tell what they run. Exec keeps it.
        try:
            own = f"/proc/{os.getpid()}"
            landlock.restrict([*_READABLE, own], execute=[*_LIBRARIES, program], scope=False)
        except OSError:
            pass  # told already
    if filtered and "seccomp" not in off:
        return {"held": ["seccomp"], "missing": missing}
    reason = "turned off" if filtered else "not on this system"
    return {"held": [], "missing": [*missing, f"seccomp ({reason})"]}
