"""seccomp: the system calls that a program may make. All others, including new ones, fail with EPERM."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from typing import Final

from posttrain.sandbox.linux import PR_SET_SECCOMP, machine, prctl

AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KILL, ERROR, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
CLONE_THREAD: Final = 0x10000
COLUMNS: Final = ("x86_64", "aarch64")
# No new process, program, socket, signal to others, mount, owner, mode, time stamp or limit of others; no memory of
# others; no way to read or write files without file descriptors (io_uring, AIO), which Landlock might not see.
PLAIN: Final = """
read 0 63|write 1 64|close 3 57|fstat 5 80|lseek 8 62|mmap 9 222|mprotect 10 226|munmap 11 215|brk 12 214
rt_sigaction 13 134|rt_sigprocmask 14 135|rt_sigreturn 15 139|pread64 17 67|pwrite64 18 68|readv 19 65|writev 20 66
sched_yield 24 124|mremap 25 216|msync 26 227|mincore 27 232|madvise 28 233|dup 32 23|nanosleep 35 101
getitimer 36 102|setitimer 38 103|getpid 39 172|sendfile 40 71|sendto 44 206|recvfrom 45 207|shutdown 48 210
getsockname 51 204|getpeername 52 205|getsockopt 55 209|exit 60 93|wait4 61 260|uname 63 160
fsync 74 82|fdatasync 75 83|ftruncate 77 46|getcwd 79 17|chdir 80 49|fchdir 81 50|umask 95 166|gettimeofday 96 169
getrlimit 97 163|getrusage 98 165|sysinfo 99 179|times 100 153|getuid 102 174|getgid 104 176|geteuid 107 175
getegid 108 177|getppid 110 173|getgroups 115 158|getresuid 118 148|getresgid 120 150|getpgid 121 155|getsid 124 156
rt_sigpending 127 136|rt_sigtimedwait 128 137|rt_sigsuspend 130 133|sigaltstack 131 132|statfs 137 43|fstatfs 138 44
gettid 186 178|futex 202 98|sched_getaffinity 204 123|getdents64 217 61|set_tid_address 218 96|restart_syscall 219 128
fadvise64 221 223|clock_gettime 228 113|clock_getres 229 114|clock_nanosleep 230 115|exit_group 231 94|epoll_ctl 233 21
openat 257 56|mkdirat 258 34|newfstatat 262 79|unlinkat 263 35|renameat 264 38|linkat 265 37|symlinkat 266 36
readlinkat 267 78|faccessat 269 48|pselect6 270 72|ppoll 271 73|set_robust_list 273 99|get_robust_list 274 100
epoll_pwait 281 22|fallocate 285 47|eventfd2 290 19|epoll_create1 291 20|dup3 292 24|pipe2 293 59|preadv 295 69
pwritev 296 70|getcpu 309 168|renameat2 316 276|getrandom 318 278|copy_file_range 326 285|preadv2 327 286
pwritev2 328 287|statx 332 291|rseq 334 293|close_range 436 436|faccessat2 439 439
open 2 -|stat 4 -|lstat 6 -|poll 7 -|access 21 -|pipe 22 -|select 23 -|dup2 33 -|alarm 37 -|getdents 78 -|rename 82 -
mkdir 83 -|rmdir 84 -|creat 85 -|link 86 -|unlink 87 -|symlink 88 -|readlink 89 -|getpgrp 111 -|arch_prctl 158 -
time 201 -|epoll_wait 232 -
"""
"""Calls that are allowed with any arguments: name, and number on x86-64 and 64-bit ARM."""
CLONE, CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
SIGNALS: Final = {"x86_64": (62, 234), "aarch64": (129, 131)}
"""kill and tgkill, which are allowed for a program's own process."""
SOCKETPAIR: Final = {"x86_64": 53, "aarch64": 199}
STREAMS: Final = (1, 0x80001, 0x801, 0x80801)
"""Stream sockets, with or without close-on-exec and nonblocking. Other kinds could send to any named socket."""
OWN: Final = 0xA1B2C3D4
"""Stands for the process itself."""
PRLIMIT: Final = {"x86_64": 302, "aarch64": 261}
IOCTL, FCNTL = {"x86_64": 16, "aarch64": 29}, {"x86_64": 72, "aarch64": 25}
IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Terminal test, terminal size, bytes to read, blocking, close on exec."""
FCNTLS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Copies, flags and locks, without setting the owner of a file, who gets its signals."""

Instruction = tuple[int, int, int, int]


def filter_code() -> bytes:
    """Return the filter as classic BPF, with a placeholder for the process that it is for."""
    kind = machine()
    column = COLUMNS.index(kind) + 1
    rows = [row.split() for row in PLAIN.replace("\n", "|").split("|") if row]
    plain = [int(row[column]) for row in rows if row[column] != "-"]
    instructions = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT[kind]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        *(instruction for number in plain for instruction in ((EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW))),
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, ERROR | errno.ENOSYS),  # its flags are out of sight; the C library then uses clone
        *_if_argument(CLONE[kind], 0, [CLONE_THREAD], ANY_BIT),
        *(instruction for number in SIGNALS[kind] for instruction in _if_argument(number, 0, [OWN])),
        *_if_argument(PRLIMIT[kind], 0, [0]),
        *_if_argument(SOCKETPAIR[kind], 1, STREAMS),
        *_if_argument(IOCTL[kind], 1, IOCTLS),
        *_if_argument(FCNTL[kind], 1, FCNTLS),
        (RETURN, 0, 0, ERROR | errno.EPERM),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _if_argument(number: int, argument: int, values: Sequence[int], test: int = EQUAL) -> list[Instruction]:
    """Allow a call if the lower half of an argument is one of these values."""
    tests: list[Instruction] = [(test, len(values) - 1 - place, 0, value) for place, value in enumerate(values)]
    tests[-1] = (test, 0, 1, values[-1])
    return [
        (EQUAL, 0, len(values) + 3, number),
        (LOAD, 0, 0, ARGUMENTS + 8 * argument),
        *tests,
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERROR | errno.EPERM),
    ]


def install(code: bytes, process: int) -> None:
    """Apply a filter to this process and everything it starts, permanently."""
    text = ctypes.create_string_buffer(code.replace(struct.pack("<I", OWN), struct.pack("<I", process)), len(code))
    header = ctypes.create_string_buffer(struct.pack("<QQ", len(code) // 8, ctypes.addressof(text)), 16)
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(header))
