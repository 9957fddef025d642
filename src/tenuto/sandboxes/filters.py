"""The seccomp filters of held executions: what no program needs and what would be a way out."""

from __future__ import annotations

import base64
import errno
import socket
from functools import cache

from tenuto.core.specs import Network
from tenuto.keeper.seccomp import ALLOW, Rule, deny, fail, rule, sockets, unless, when

_ADMINISTRATION = (
    "acct", "bpf", "chroot", "clock_settime", "delete_module", "fanotify_init", "finit_module",
    "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kexec_file_load",
    "kexec_load", "listmount", "lookup_dcookie", "mount", "mount_setattr", "move_mount",
    "open_by_handle_at", "open_tree", "open_tree_attr", "perf_event_open", "pivot_root", "quotactl",
    "quotactl_fd", "reboot", "setdomainname", "sethostname", "setns", "settimeofday", "statmount",
    "swapoff", "swapon", "syslog", "umount2", "unshare", "vhangup",
)  # fmt: skip

_OTHER_PROCESSES = (
    "kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
)  # fmt: skip

_KEYRINGS = ("add_key", "keyctl", "request_key")  # shared with everything of the same user

# Sockets could be made past the filter with these; programs fall back to what is older.
_ABSENT = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "userfaultfd")

_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX, _TIOCCONS = 0x5412, 0x541C, 0x541D

# What Landlock has no word for, and namespaces would keep apart.
_SHARED_MEMORY = (
    "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
    "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat",
    "shmctl", "shmdt", "shmget",
)  # fmt: skip
_MODES = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "futimesat", "utime", "utimensat", "utimes",
)  # fmt: skip
_OWNERS = ("chown", "fchown", "fchownat", "file_setattr", "lchown")
_ATTRIBUTES = (
    "fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "removexattrat",
    "setxattr", "setxattrat",
)  # fmt: skip
_ON_A_PID = (  # of another process, where only the user is asked for; 0 is the caller itself
    "migrate_pages", "move_pages", "prlimit64", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler",
)  # fmt: skip
_SET_FLAGS, _SET_XATTR = 0x40086602, 0x401C5820


@cache
def in_namespaces(net: Network) -> str:
    """Return the filter for a program in namespaces of its own, in base64."""
    return _encoded([*_network(net, own_stack=True), *_common()])


@cache
def beside_others(net: Network) -> str:
    """Return the filter for a program that shares the machine's namespaces, in base64.

    Setting modes and times does nothing and says that it was done: on files outside, nothing else
    would keep it from happening, and most programs give up if it fails.
    """
    rules = [*_network(net, own_stack=False), *_common()]
    rules += [rule(name, fail(0)) for name in _MODES]
    rules += [rule(name, fail(errno.EPERM)) for name in _OWNERS]
    rules += [rule(name, fail(errno.EOPNOTSUPP)) for name in _ATTRIBUTES]
    rules += [rule(name, fail(errno.ENOSYS)) for name in _SHARED_MEMORY]
    rules += [rule("ioctl", fail(), when(1, which)) for which in (_SET_FLAGS, _SET_XATTR)]
    # watching a folder tells the names in it, and Landlock lets that pass
    rules += [rule("inotify_add_watch", fail(errno.EACCES))]
    rules += [rule(name, fail(), unless(0, 0)) for name in _ON_A_PID]
    rules += [
        rule("setpriority", ALLOW, when(0, 0), when(1, 0)),
        rule("setpriority", fail()),
        rule("ioprio_set", ALLOW, when(0, 1), when(1, 0)),
        rule("ioprio_set", fail()),
    ]
    return _encoded(rules)


def _common() -> list[Rule]:
    forbidden = (*_ADMINISTRATION, *_OTHER_PROCESSES, *_KEYRINGS)
    return [
        *(rule(name, fail(errno.EPERM)) for name in forbidden),
        *(rule(name, fail(errno.ENOSYS)) for name in _ABSENT),
        rule("clone", fail(errno.EPERM), unless(0, 0, mask=_NEW_NAMESPACES)),
        *(rule("ioctl", fail(), when(1, which)) for which in (_TIOCSTI, _TIOCLINUX, _TIOCCONS)),
    ]


def _network(net: Network, own_stack: bool) -> list[Rule]:
    """Return which sockets can be made; pairs that are connected from birth always can."""
    if net == "off" or (net == "loopback" and not own_stack):
        return sockets(())
    families = [socket.AF_INET, socket.AF_INET6]
    if net == "loopback":
        families.append(socket.AF_UNIX)  # in a network of its own no outsider's is in reach
    # names are looked up with the help of this one; its other protocols tell of devices and more
    routes = rule("socket", ALLOW, when(0, socket.AF_NETLINK), when(2, 0))
    return [routes, *sockets(families)]


def _encoded(rules: list[Rule]) -> str:
    return base64.b64encode(deny(rules=rules)).decode()
