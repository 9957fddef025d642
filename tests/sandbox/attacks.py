"""Runs inside a sandbox: tries everything it should not be able to do, and tells what came of it.

What it is told stands in ATTACK (JSON): paths, ports and pids outside. It prints one JSON object: for
each attempt "done", or the error that stopped it. It also runs without a sandbox, to show that the
attempts are real ones: so no attempt may harm the machine if it succeeds. Where one would, it is made
in a way that is refused for another reason (EINVAL) to those who have the right.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import subprocess

TOLD = json.loads(os.environ["ATTACK"])
SECRET, OUTSIDE, STATE, PID = TOLD["secret"], TOLD["outside"], TOLD["state"], TOLD["pid"]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
FOUND = {}
X86 = os.uname().machine == "x86_64"


def attempt(function):
    try:
        result = function()
        FOUND[function.__name__] = "done" if result is None or result is True else str(result)
    except OSError as error:
        FOUND[function.__name__] = errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:
        FOUND[function.__name__] = f"{type(error).__name__}: {error}"
    return function


def allowed(function):
    """Do what can only fail: to be told that it is not permitted is the refusal that counts."""
    try:
        function()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EROFS):
            raise


def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "")


def call(x86, arm, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = LIBC.syscall(ctypes.c_long(x86 if X86 else arm), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def write(path, mode="ab"):
    with open(path, mode) as file:
        file.write(b"x")


def tape():
    own = os.environ["TENUTO_EXECUTION"]
    for folder, _, files in os.walk(STATE):
        if own in folder and files:
            return os.path.join(folder, "tape")
    day = os.path.join(STATE, "executions")
    raise OSError(errno.ENOENT if not os.path.exists(day) else errno.EACCES, "not found")


# Files


@attempt
def read_a_secret():
    read(SECRET)


@attempt
def list_the_folder_of_a_secret():
    os.listdir(os.path.dirname(SECRET))


@attempt
def write_outside():
    write(os.path.join(OUTSIDE, "new"))


@attempt
def append_to_a_secret():
    write(SECRET)


@attempt
def truncate_a_secret():
    os.truncate(SECRET, 0)


@attempt
def remove_outside():
    os.unlink(os.path.join(OUTSIDE, "victim"))


@attempt
def move_outside_in():
    os.rename(os.path.join(OUTSIDE, "victim2"), "moved")


@attempt
def link_outside_in():
    os.link(SECRET, "linked")
    read("linked")


@attempt
def make_folder_outside():
    os.mkdir(os.path.join(OUTSIDE, "folder"))


@attempt
def follow_a_link_out():
    os.symlink(SECRET, "out")
    read("out")


@attempt
def climb_out():
    read("../" * 20 + SECRET.lstrip("/"))


@attempt
def through_own_root():
    read("/proc/self/root" + SECRET)


@attempt
def through_own_folder():
    read("/proc/self/cwd/" + os.path.relpath(SECRET))


@attempt
def through_the_first_process():
    read("/proc/1/root" + SECRET)


@attempt
def through_another_process():
    read(f"/proc/{PID}/root" + SECRET)


@attempt
def environment_of_another():
    read(f"/proc/{PID}/environ")


@attempt
def command_of_another():
    with open(f"/proc/{PID}/cmdline") as file:
        assert "victim" in file.read()


@attempt
def memory_of_another():
    os.close(os.open(f"/proc/{PID}/mem", os.O_RDWR))


@attempt
def through_a_handle():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    call(303, 264, -100, SECRET.encode(), handle, ctypes.byref(mount), 0)
    os.close(call(304, 265, os.open(".", os.O_RDONLY), handle, os.O_RDONLY))


@attempt
def write_the_system():
    write("/usr/tenuto-was-here")
    os.unlink("/usr/tenuto-was-here")


@attempt
def write_a_program():
    os.close(os.open("/usr/bin/env", os.O_WRONLY))


@attempt
def write_at_the_root():
    write("/tenuto-was-here")
    os.unlink("/tenuto-was-here")


@attempt
def read_shadow():
    read("/etc/shadow")


@attempt
def host_tmp():
    read(TOLD["tmp"])


@attempt
def host_shared_memory():
    read(TOLD["shm"])


@attempt
def host_secret_variable():
    assert os.environ["TENUTO_TEST_SECRET"]


@attempt
def watch_the_state():
    fd = call(294, 26, 0)
    call(254, 27, fd, STATE.encode(), 0x100)


@attempt
def open_memory():
    read("/dev/mem")


@attempt
def open_kernel_log():
    os.close(os.open("/dev/kmsg", os.O_RDONLY))


@attempt
def make_a_device():
    os.mknod("device", 0o660 | 0o020000, os.makedev(1, 1))


@attempt
def core_pattern():
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


@attempt
def sysrq():
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))


# Our state


@attempt
def list_the_state():
    os.listdir(STATE)


@attempt
def list_the_state_by_its_link():
    os.listdir(".tenuto")


@attempt
def read_own_tape():
    read(tape())


@attempt
def write_own_tape():
    write(tape())


@attempt
def reach_own_keeper():
    folder = os.path.dirname(tape())
    for name in os.listdir(folder):
        if stat.S_ISSOCK(os.stat(os.path.join(folder, name)).st_mode):
            place = os.open(folder, os.O_PATH)  # the whole path may be too long
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(f"/proc/self/fd/{place}/{name}")
                return True
    raise OSError(errno.ENOENT, "")


@attempt
def save_a_tool():
    os.makedirs(os.path.join(STATE, "composed-tools"), exist_ok=True)
    write(os.path.join(STATE, "composed-tools", "evil.js"))


@attempt
def save_a_tool_by_the_link():
    os.makedirs(".tenuto/composed-tools", exist_ok=True)
    write(".tenuto/composed-tools/evil.js")


# Network


def stream(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)


def datagram(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", address)


@attempt
def tcp_4():
    stream(socket.AF_INET, ("127.0.0.1", TOLD["tcp4"]))


@attempt
def tcp_6():
    stream(socket.AF_INET6, ("::1", TOLD["tcp6"]))


@attempt
def udp_4():
    datagram(socket.AF_INET, ("127.0.0.1", TOLD["udp4"]))


@attempt
def unix_path():
    stream(socket.AF_UNIX, TOLD["unix"])


@attempt
def unix_path_inside():
    stream(socket.AF_UNIX, "listener")


@attempt
def unix_abstract():
    stream(socket.AF_UNIX, "\0" + TOLD["abstract"])


@attempt
def unix_datagram():
    datagram(socket.AF_UNIX, "\0" + TOLD["abstract"] + "-d")


@attempt
def unix_datagram_from_a_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", TOLD["unix"] + "-d")


@attempt
def unix_datagram_from_a_raw_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    one.connect(TOLD["unix"] + "-d")


@attempt
def netlink():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))


@attempt
def netlink_events():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).bind((0, 1))


@attempt
def packet():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))


@attempt
def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attempt
def vsock():
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


@attempt
def crypto():
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0)


@attempt
def listen():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()


@attempt
def io_uring():
    os.close(call(425, 425, 1, ctypes.create_string_buffer(200)))


# Processes


@attempt
def signal_another():
    os.kill(PID, 0)


@attempt
def signal_by_descriptor():
    signal.pidfd_send_signal(os.pidfd_open(PID), 0)


@attempt
def signal_by_file():
    read_end, write_end = os.pipe()
    fcntl.fcntl(read_end, fcntl.F_SETOWN, PID)
    fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGUSR2)
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write_end, b"x")
    return "sent"


@attempt
def trace_another():
    call(101, 117, 0x4206, PID, 0, 0)  # PTRACE_SEIZE; let go of when we end


@attempt
def read_memory_of_another():
    here = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(here), 8)
    remote = struct.pack("PN", TOLD["address"], 8)
    call(310, 270, PID, local, 1, remote, 1, 0)


@attempt
def limit_another():
    import resource

    resource.prlimit(PID, resource.RLIMIT_CORE, resource.prlimit(PID, resource.RLIMIT_CORE))


@attempt
def slow_another():
    os.setpriority(os.PRIO_PROCESS, PID, os.getpriority(os.PRIO_PROCESS, PID))


@attempt
def bind_another():
    os.sched_setaffinity(PID, os.sched_getaffinity(0))


@attempt
def shared_memory_of_another():
    call(29, 194, TOLD["key"], 8, 0)


@attempt
def keyring():
    call(248, 217, b"user", b"tenuto", b"x", 1, -2)


# The kernel


@attempt
def mount():
    os.makedirs("mnt", exist_ok=True)
    allowed(lambda: libc("mount", b"none", b"mnt", b"no such file system", 0, b""))


@attempt
def remount():
    allowed(lambda: libc("mount", b"none", b"/usr/bin", None, 32 | 4096, None))  # no mount point


@attempt
def unmount():
    allowed(lambda: libc("umount2", b"/usr/bin", 0))  # no mount point


@attempt
def pivot():
    allowed(lambda: call(155, 41, b"/usr/bin", b"/usr/bin"))


@attempt
def new_root():
    allowed(lambda: os.chroot("/no such folder"))


def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "")


def unshare(flags):
    if LIBC.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "")


@attempt
def user_namespace():
    in_child(lambda: unshare(0x10000000))


@attempt
def network_namespace():
    in_child(lambda: unshare(0x40000000))


@attempt
def mount_namespace():
    in_child(lambda: unshare(0x20000))


@attempt
def clone_into_a_user_namespace():
    pid = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt
def join_namespace():
    allowed(lambda: libc("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0x40000000))


@attempt
def bpf():
    call(321, 280, 0, struct.pack("IIII", 1, 4, 4, 1) + bytes(112), 128)


@attempt
def performance():
    attributes = struct.pack("IIQQQQ", 1, 112, 0, 0, 0, 0) + bytes(72)
    os.close(call(298, 241, attributes, 0, -1, -1, 0))


@attempt
def page_faults():
    os.close(call(323, 282, 0))


@attempt
def setuid_program():
    done = subprocess.run(["./setuid-id", "-u"], capture_output=True, text=True, check=False)
    owner = os.stat("setuid-id").st_uid
    if done.returncode or int(done.stdout) == os.getuid():
        raise OSError(errno.EPERM, "")
    return f"became {done.stdout} of {owner}"


# Attributes outside: what counts is what they are afterwards, seen from outside


def quietly(function):
    try:
        function()
    except OSError:
        pass


quietly(lambda: os.chmod(SECRET, 0o777))
quietly(lambda: os.chown(SECRET, 1234, 1234))
quietly(lambda: os.utime(SECRET, (1, 1)))
quietly(lambda: os.setxattr(SECRET, "user.tenuto", b"x"))
quietly(lambda: os.fchmod(os.open(SECRET, os.O_PATH), 0o777))

# What must go on working


@attempt
def write_here():
    write("here")


@attempt
def start_a_program():
    subprocess.run(["/bin/sh", "-c", "exit 0"], check=True)


@attempt
def use_tmp():
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(b"x")


@attempt
def pair():
    one, two = socket.socketpair()
    one.send(b"x")
    assert two.recv(1) == b"x"


@attempt
def threads():
    import threading

    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


@attempt
def copy_a_file():
    import shutil

    shutil.copy("here", "copied")


@attempt
def null():
    write("/dev/null")
    read("/dev/urandom")


@attempt
def know_names():
    import pwd

    assert pwd.getpwuid(0).pw_name == "root"


@attempt
def own_proc():
    read("/proc/self/status")


FOUND["descriptors"] = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:5]
with open("/proc/self/status") as file:
    FOUND["status"] = {
        line.split(":")[0]: line.split()[1]
        for line in file
        if line.startswith(("Cap", "NoNew", "Secc"))
    }
print(json.dumps(FOUND))
