"""What a forked child may no longer do before it runs a candidate: resource limits, a seccomp filter, an audit hook.

The container is the wall; this is the room inside it. The filter is a small classic BPF program loaded through prctl
(seccomp(2)), so that no library has to be in the image. It knows two kinds of refusal, which the parent can tell apart:

    process calls (fork, exec, kill, setsid, ptrace, …)   the kernel kills the child; the parent sees SIGSYS
    other calls (socket, mount, bpf, io_uring, …)         SIGSYS, whose handler is libc's ``_exit``: status 31

The audit hook names what stays within Python (opening files, walking gc, starting threads). It can be got round by
native code, which the filter then stops; like everything inside the child it only ever rejects.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXIT_SANDBOX = signal.SIGSYS.value  # the handler is _exit itself, so the status is the signal's number
EXIT_PROCESS = 32
EXIT_FLOOD = 33

ALLOW, TRAP, KILL = 0x7FFF0000, 0x00030000, 0x80000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call
_PROCESS = {
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "setsid": (112, 157), "setpgid": (109, 154), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "kcmp": (312, 272),
    "unshare": (272, 97), "setns": (308, 268),
}  # fmt: skip
_EXEC = {"execve": (59, 221), "execveat": (322, 281)}
_TO_OTHERS = {"kill": (62, 129), "tgkill": (234, 131)}  # allowed to oneself: abort() raises a signal
_SANDBOX = {
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "mknod": (133, None), "mknodat": (259, 33), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "fanotify_init": (300, 262), "personality": (135, 92), "iopl": (172, None),
    "ioperm": (173, None), "mount_setattr": (442, 442), "fsopen": (430, 430), "move_mount": (429, 429),
    "open_tree": (428, 428), "syslog": (103, 116),
}  # fmt: skip
_SIGACTION = {"rt_sigaction": (13, 134)}  # of SIGSYS: the handler must stay


def restrict(
    *, allow_exec: bool = False, memory_bytes: int = 1 << 30, file_bytes: int = 8 << 20, cpu_s: int = 120
) -> None:
    """Limits and filter for this process, for good. ``allow_exec`` leaves fork and exec (Triton's own assembler).

    ``memory_bytes`` is added to what the process has mapped already. Raises OSError where seccomp is not to be had.
    """
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, mapped + memory_bytes)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_CPU, cpu_s, slack=2)  # SIGXCPU first, so that the reason is known; then SIGKILL
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _load_filter(allow_exec)


def _limit(which: int, value: int, slack: int = 0) -> None:
    hard = resource.getrlimit(which)[1]
    most = value + slack if hard == resource.RLIM_INFINITY else min(value + slack, hard)
    resource.setrlimit(which, (min(value, most), most))


def hide_from_others() -> None:
    """Make /proc/self of this process root's (PR_SET_DUMPABLE 0): a child cannot open the memory of its parent."""
    _libc().prctl(4, 0, 0, 0, 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _load_filter(allow_exec: bool) -> None:
    """seccomp(2), mode filter, after PR_SET_NO_NEW_PRIVS; SIGSYS handled by ``_exit``."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(f"no system call filter for {machine}")
    program = _program(machine, os.getpid(), allow_exec)
    libc = _libc()
    libc.signal(signal.SIGSYS.value, ctypes.cast(libc["_exit"], ctypes.c_void_p))
    buffer = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    request = Filter(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(request), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the system call filter was refused")


def _program(machine: str, pid: int, allow_exec: bool) -> bytes:
    """Classic BPF: check the architecture, then one comparison per refused call (linux/bpf_common.h opcodes)."""
    column = 0 if machine == "x86_64" else 1
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),
        (equal, 1, 0, _ARCHITECTURES[machine]),
        (give, 0, 0, KILL),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # the x32 table of x86_64
        (give, 0, 0, KILL),
    ]
    refused: list[tuple[int | None, int]] = [(numbers[column], TRAP) for numbers in _SANDBOX.values()]
    if not allow_exec:
        refused += [(numbers[column], KILL) for numbers in (*_PROCESS.values(), *_EXEC.values())]
    else:
        refused += [(_PROCESS[name][column], KILL) for name in ("ptrace", "setns", "unshare", "pidfd_getfd")]
        refused += [(_PROCESS[name][column], KILL) for name in ("process_vm_writev", "process_vm_readv")]
    for number, action in refused:
        if number is not None:
            code += [(equal, 0, 1, number), (give, 0, 0, action)]
    # calls that are judged by their first argument (low word, little endian): a pid, or a signal number
    for number, value, refuse_equal in [
        *((numbers[column], pid, False) for numbers in _TO_OTHERS.values() if not allow_exec),
        *((numbers[column], signal.SIGSYS.value, True) for numbers in _SIGACTION.values() if not allow_exec),
    ]:
        hit = [(give, 0, 0, KILL), (give, 0, 0, ALLOW)] if refuse_equal else [(give, 0, 0, ALLOW), (give, 0, 0, KILL)]
        code += [(equal, 0, 4, number), (load, 0, 0, 16), (equal, 0, 1, value), *hit]
    code.append((give, 0, 0, ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in code)


_PROCESS_EVENTS = frozenset(
    "subprocess.Popen os.system os.exec os.fork os.forkpty os.posix_spawn os.startfile os.kill os.killpg pty.spawn "
    "_thread.start_new_thread _thread.start_joinable_thread signal.pthread_kill".split()
)
_SANDBOX_EVENTS = frozenset(
    "gc.get_objects gc.get_referrers gc.get_referents os.remove os.rename os.mkdir os.rmdir "
    "os.link os.symlink os.truncate os.chmod os.chown os.utime os.putenv os.unsetenv os.chdir os.fchdir os.mkfifo "
    "shutil.rmtree shutil.copyfile shutil.move shutil.copytree shutil.make_archive tempfile.mkstemp tempfile.mkdtemp "
    "sys.settrace sys.setprofile sys._current_frames sys._current_exceptions code.__new__ function.__new__ "
    "ctypes.dlopen ctypes.dlsym ctypes.call_function ctypes.string_at ctypes.wstring_at ctypes.cdata ctypes.addressof "
    "ctypes.cdata/buffer mmap.__new__ resource.setrlimit resource.prlimit sqlite3.connect urllib.Request "
    "cpython.run_command cpython.run_file cpython.run_module cpython.run_stdin syslog.syslog".split()
)


def watch(allowed_roots: tuple[str, ...], on_violation: Callable[[int, str], None]) -> Callable[[], None]:
    """Install the audit hook; returns a function that arms it. ``on_violation(exit status, what)`` must not return.

    Files below ``allowed_roots`` may be opened for reading (the interpreter and its packages); nothing for writing.
    """
    armed = [False]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not armed[0]:
            return
        if event in _PROCESS_EVENTS:
            on_violation(EXIT_PROCESS, event)
        elif event in _SANDBOX_EVENTS or event.startswith(("socket.", "ftplib.", "http.", "smtplib.")):
            on_violation(EXIT_SANDBOX, event)
        elif event in ("open", "os.listdir", "os.scandir"):
            path, flags = arguments[0], arguments[2] if event == "open" else 0
            if isinstance(path, bytes):
                path = os.fsdecode(path)
            writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            inside = isinstance(path, str) and os.path.normpath(path).startswith(allowed_roots)
            if isinstance(path, str) and (writing or not inside):
                on_violation(EXIT_SANDBOX, f"open {path}")

    sys.addaudithook(hook)

    def arm() -> None:
        armed[0] = True

    return arm


def close_everything_but(keep: int) -> None:
    """Close every descriptor except standard streams and ``keep``."""
    with contextlib.suppress(ValueError, OSError):
        top = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        os.closerange(3, keep)
        os.closerange(keep + 1, min(top, 1 << 16))
