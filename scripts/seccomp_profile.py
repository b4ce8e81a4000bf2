"""Writes workspace/seccomp.json, the sandbox's allow-list of system calls.

    python scripts/seccomp_profile.py            write the file
    python scripts/seccomp_profile.py --check    exit 1 if the file is not what this script writes

What is not named here fails with EPERM (clone3 with ENOSYS, upon which the C library falls back to clone). The list is
what Python, torch, Triton's compiler and an init process need. It is narrower than the engine's default profile: it has
no io_uring, ptrace, process_vm_*, kcmp, pidfd_getfd, bpf, perf_event_open, userfaultfd, keyrings, mounting, namespaces,
System V IPC, POSIX message queues, kernel AIO, fanotify, file handles, swapping of identities, clock setting or
personality; sockets are local and IP ones only (there is no network: IP reaches the loopback device), and
only the machine's native calling convention is allowed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "workspace" / "seccomp.json"

ALLOWED = {
    "files": """open openat openat2 creat close close_range read readv pread64 preadv preadv2 write writev pwrite64
        pwritev pwritev2 lseek sendfile copy_file_range splice tee vmsplice readahead fadvise64 fallocate ftruncate
        truncate fsync fdatasync sync_file_range syncfs sync flock fcntl ioctl dup dup2 dup3 pipe pipe2 memfd_create""",
    "names": """access faccessat faccessat2 stat fstat lstat newfstatat statx statfs fstatfs getdents getdents64 getcwd
        chdir fchdir mkdir mkdirat rmdir rename renameat renameat2 link linkat unlink unlinkat symlink symlinkat
        readlink readlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat umask utime utimes utimensat
        futimesat getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr
        removexattr lremovexattr fremovexattr inotify_init inotify_init1 inotify_add_watch inotify_rm_watch""",
    "waiting": """poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime""",
    "memory": """brk mmap munmap mprotect mremap msync madvise mincore mlock mlock2 munlock mlockall munlockall
        membarrier pkey_alloc pkey_free pkey_mprotect""",
    "processes": """fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open
        pidfd_send_signal getpid getppid gettid getpgid getpgrp getsid setpgid setsid set_tid_address set_robust_list
        get_robust_list rseq futex futex_waitv arch_prctl prctl seccomp restart_syscall pause""",
    "identity": """getuid geteuid getgid getegid getresuid getresgid getgroups capget uname sysinfo getcpu""",
    "signals": """rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait rt_sigqueueinfo
        rt_tgsigqueueinfo sigaltstack alarm setitimer getitimer timer_create timer_settime timer_gettime
        timer_getoverrun timer_delete""",
    "scheduling": """sched_yield sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler
        sched_getparam sched_setparam sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min
        sched_rr_get_interval getpriority setpriority ioprio_get ioprio_set""",
    "limits": "getrlimit setrlimit prlimit64 getrusage times",
    "time": "time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep",
    "randomness": "getrandom",
    "sockets": """socketpair bind connect listen accept accept4 shutdown getsockname getpeername getsockopt setsockopt
        sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg""",
    "confining oneself further": "landlock_create_ruleset landlock_add_rule landlock_restrict_self",
}

# linux/socket.h. Not netlink, packet, AF_ALG or vsock: the last one reaches out of any network namespace.
SOCKET_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}

# linux/sched.h: NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NEW_NAMESPACES = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
CLONE_FLAGS = NEW_NAMESPACES & ~0x000000FF  # the low byte of clone's flags is the exit signal; NEWTIME is clone3's only

ENOSYS = 38


def profile() -> dict[str, Any]:
    """Return the profile in the engine's format."""
    calls: list[dict[str, Any]] = [
        {"comment": what, "names": sorted(names.split()), "action": "SCMP_ACT_ALLOW"} for what, names in ALLOWED.items()
    ]
    for family, number in SOCKET_FAMILIES.items():
        calls.append(
            {
                "comment": f"sockets of {family}",
                "names": ["socket"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": number, "op": "SCMP_CMP_EQ"}],
            }
        )
    calls.append(
        {
            "comment": "threads and processes, without new namespaces",
            "names": ["clone"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": CLONE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
        }
    )
    calls.append(
        {
            "comment": "its flags lie in memory, where a filter cannot see them",
            "names": ["clone3"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": ENOSYS,
        }
    )
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": calls,
    }


def main() -> int:
    """Write or check the file; return the exit code."""
    text = json.dumps(profile(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        same = TARGET.is_file() and TARGET.read_text() == text
        print("workspace/seccomp.json is up to date" if same else "run python scripts/seccomp_profile.py")
        return 0 if same else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
