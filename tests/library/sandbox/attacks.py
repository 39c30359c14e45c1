"""Programs that try to get out of the sandbox, or to use up the machine, and what must become of each."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

OUTSIDE = "@OUTSIDE@"
"""Stands for a folder of the parent that everybody may read and write, with the file `secret` in it."""
PARENT = "@PARENT@"
"""Stands for the process id of the parent."""
PORT = "@PORT@"
"""Stands for a port on which the parent listens."""


@dataclass(frozen=True)
class Attack:
    """A program, and what it must print or why it must be stopped."""

    name: str
    code: str
    prints: str | None = None
    why: str | None = None
    scratch: bool = False
    """Whether it needs a scratch folder."""


def refused(name: str, *calls: str, scratch: bool = False) -> Attack:
    """A program whose calls must all raise OSError."""
    tried = "\n".join(
        f"try:\n{indent(dedent(call).strip(), '    ')}\n    print('done: {n}')\nexcept OSError: pass"
        for n, call in enumerate(calls)
    )
    imports = "import ctypes, fcntl, os, resource, shutil, signal, socket, subprocess, sys"
    return Attack(name, f"{imports}\n{tried}\nprint('end')", prints="end", scratch=scratch)


def kernel(name: str, *calls: str) -> Attack:
    """A program whose system calls must all fail; the numbers are those of x86-64."""
    tried = "\n".join(f"if libc.syscall({call}) != -1: print({call!r})" for call in calls)
    code = f"import ctypes, os, signal\nlibc = ctypes.CDLL(None)\nparent = {PARENT}\n{tried}\nprint('end')"
    return Attack(name, code, prints="end")


PROCESSES = (
    refused(
        "fork", "os.fork()", "os.forkpty()", "subprocess.run(['true'])", "os.posix_spawn('/bin/true', ['true'], {})"
    ),
    refused("exec", "os.execv('/bin/true', ['true'])", "os.execv(sys.executable, ['python'])"),
    kernel("processes by number", "57", "58", "56, 17, 0, 0, 0, 0", "435, 0, 0", "59, 0, 0, 0", "322, 0, 0, 0, 0, 0"),
    Attack("fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", why="processor time"),
    Attack(
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        why="threads",
    ),
    Attack(
        "thread that keeps running",
        "import threading\ndef run():\n    while True: pass\nthreading.Thread(target=run).start()\nprint(1)",
        why="processor time",
    ),
    Attack(
        "daemon thread",
        "import threading\ndef run():\n    while True: pass\n"
        "threading.Thread(target=run, daemon=True).start()\nprint(1)",
        prints="1",
    ),
    refused(
        "signals",
        f"os.kill({PARENT}, signal.SIGTERM)",
        f"os.kill({PARENT}, 0)",
        "os.kill(os.getppid(), signal.SIGKILL)",
        "os.kill(-1, signal.SIGKILL)",
        "os.kill(0, signal.SIGKILL)",
        f"os.killpg({PARENT}, signal.SIGTERM)",
        f"os.pidfd_open({PARENT})",
        f"fcntl.fcntl(1, fcntl.F_SETOWN, {PARENT})",
        "fcntl.fcntl(1, 10, signal.SIGKILL)",
    ),
    kernel(
        "signals by number",
        "62, parent, 15",
        "200, parent, 15",
        "234, parent, parent, 15",
        "129, parent, 15, 0",
        "297, parent, parent, 15, 0",
        "424, 0, 9, 0, 0",
    ),
    kernel(
        "memory of others",
        "101, 16, parent, 0, 0",
        "310, parent, 0, 0, 0, 0, 0",
        "311, parent, 0, 0, 0, 0, 0",
        "312, parent, parent, 0, 0, 0",
        "438, 0, 0, 0",
        "440, 0, 0, 0, 0, 0",
    ),
    refused(
        "limits and priority of others",
        f"resource.prlimit({PARENT}, resource.RLIMIT_NOFILE, (1, 1))",
        f"os.setpriority(os.PRIO_PROCESS, {PARENT}, 19)",
        f"os.sched_setaffinity({PARENT}, [0])",
        "os.sched_setaffinity(0, [0])",
    ),
    refused(
        "sockets that take the address of another",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)",
        "socket.socketpair()[0].sendto(b'x', '\\0posttrain-attack')",
        "socket.socketpair()[0].sendto(b'x', '/tmp/posttrain-attack')",
    ),
    Attack(
        "own limits",
        "import resource\n"
        "for name in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):\n"
        "    try: resource.setrlimit(name, (-1, -1)); print('raised')\n"
        "    except (OSError, ValueError): pass\nprint('end')",
        prints="end",
    ),
)
RESOURCES = (
    Attack("endless loop", "while True: pass", why="processor time"),
    Attack(
        "endless loop, all signals ignored",
        "import signal\nfor one in set(signal.Signals) - {9, 19}: signal.signal(one, signal.SIG_IGN)\nwhile True: pass",
        why="processor time",
    ),
    Attack("sleep", "import time\ntime.sleep(3600)", why="longer than"),
    Attack("waits for input that ended", "import sys\nprint(repr(sys.stdin.read()))", prints="''"),
    Attack("reads a pipe of its own", "import os\nos.read(os.pipe()[0], 1)", why="longer than"),
    Attack("endless output", "while True: print('x' * 1000)", why="bytes of output"),
    Attack("endless errors", "import sys\nwhile True: print('x' * 1000, file=sys.stderr)", why="bytes of output"),
    Attack("output closed, then a loop", "import os\nos.close(1); os.close(2)\nwhile True: pass", why="processor time"),
    Attack("memory bomb", "held = []\nwhile True: held.append(bytes(10**8))", why="MemoryError"),
    Attack("large number", "print(len(bytes(10**11)))", why="MemoryError"),
    Attack("memory maps", "import mmap\nheld = []\nwhile True: held.append(mmap.mmap(-1, 10**8))", why="Error"),
    refused("memory files", "os.memfd_create('x')"),
    Attack("pipes", "import os\nheld = []\nwhile True: held.append(os.pipe())", why="Too many open files"),
    Attack("deep recursion", "def f(n): return f(n + 1)\nf(0)", why="RecursionError"),
    Attack("crash", "import ctypes\nctypes.string_at(0)", why="SIGSEGV"),
    Attack(
        "large file",
        "with open('x', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        why="OSError",
        scratch=True,
    ),
    Attack(
        "many files",
        "n = 0\ntry:\n    while True:\n"
        "        open(str(n), 'wb').write(bytes(10**6)); n += 1\n"
        "except OSError: print(n < 20)",
        prints="True",
        scratch=True,
    ),
    Attack(
        "many empty files",
        "n = 0\ntry:\n    while True:\n        open(str(n), 'w').close(); n += 1\nexcept OSError: print(n < 300)",
        prints="True",
        scratch=True,
    ),
    Attack(
        "deep folders",
        "import os\nn = 0\ntry:\n    while True: os.mkdir('d'); os.chdir('d'); n += 1\nexcept OSError: print(n < 300)",
        prints="True",
        scratch=True,
    ),
)
FILES = (
    refused(
        "writes outside",
        *(
            f"open('{folder}/posttrain-attack', 'w')"
            for folder in (OUTSIDE, "/", "/tmp", "/var/tmp", "/dev/shm", "/usr/lib", "/etc", "/root")
        ),
        "open(os.path.dirname(os.__file__) + '/attack.py', 'w')",
        "open(os.__file__, 'a')",
        f"os.mkdir('{OUTSIDE}/folder')",
        f"os.symlink('/', '{OUTSIDE}/link')",
        f"os.mkfifo('{OUTSIDE}/fifo')",
        f"os.mknod('{OUTSIDE}/node')",
    ),
    refused(
        "changes outside",
        *(
            f"os.{call}"
            for call in (
                f"truncate('{OUTSIDE}/secret', 0)",
                f"remove('{OUTSIDE}/secret')",
                f"rename('{OUTSIDE}/secret', '{OUTSIDE}/moved')",
                f"link('{OUTSIDE}/secret', '{OUTSIDE}/linked')",
                f"chmod('{OUTSIDE}/secret', 0)",
                f"chown('{OUTSIDE}/secret', 1, 1)",
                f"utime('{OUTSIDE}/secret', (0, 0))",
                f"setxattr('{OUTSIDE}/secret', 'user.x', b'x')",
                f"open('{OUTSIDE}/secret', os.O_RDONLY | os.O_TRUNC)",
                f"open('{OUTSIDE}', os.O_TMPFILE | os.O_RDWR)",
                "chmod(os.__file__, 0)",
                "utime(os.__file__, (0, 0))",
            )
        ),
    ),
    refused(
        "reads outside",
        f"open('{OUTSIDE}/secret')",
        f"os.listdir('{OUTSIDE}')",
        "open('/root/.bashrc')",
        "open('/etc/passwd')",
        "open('/etc/shadow')",
        "open('/proc/self/environ')",
        "open('/proc/self/maps')",
        f"open('/proc/{PARENT}/environ')",
        f"open('/proc/{PARENT}/mem')",
        "os.listdir('/proc')",
        "os.listdir('/home')",
        "open('/dev/mem')",
        "open('/dev/vda')",
        "os.listdir('/sys')",
    ),
    refused(
        "links out of the scratch folder",
        f"os.symlink('{OUTSIDE}/secret', 'a'); open('a')",
        f"os.symlink('{OUTSIDE}', 'b'); open('b/secret')",
        "os.symlink('../../../../../../../etc/passwd', 'c'); open('c')",
        f"os.link('{OUTSIDE}/secret', 'd')",
        "os.symlink(os.__file__, 'e'); open('e', 'a')",
        f"shutil.copytree('{OUTSIDE}', 'f')",
    ),
    Attack(
        "scratch folder",
        "open('a', 'w').write('x')\nimport os, tempfile\n"
        "with tempfile.NamedTemporaryFile() as file: file.write(b'1')\n"
        "print(open('a').read(), os.listdir())",
        prints="x ['a']",
        scratch=True,
    ),
    Attack(
        "library without packages",
        "try: import psutil\nexcept ImportError:\n  try: import pip\n"
        "  except ImportError:\n    try: import numpy\n"
        "    except ImportError: print('none')",
        prints="none",
    ),
    Attack(
        "modules of the library",
        "import sqlite3, ssl, decimal, lzma, zoneinfo, hashlib, unittest, fractions\n"
        "print(hashlib.sha256(b'').hexdigest()[:4])",
        prints="e3b0",
    ),
    Attack("environment", "import os\nprint(sorted(os.environ))", prints=None),
    kernel(
        "mounts and namespaces",
        "165, 0, 0, 0, 0, 0",
        "166, 0, 0",
        "272, 0x10000000",
        "272, 0x20000",
        "308, 0, 0",
        "161, b'/'",
        "155, b'/', b'/'",
        "428, 0, 0, 0",
        "430, 0, 0",
        "442, 0, 0, 0, 0, 0",
    ),
    kernel(
        "other calls",
        "425, 1, 0",  # io_uring_setup
        "206, 1, 0",  # io_setup
        "321, 0, 0, 0",  # bpf
        "323, 0",  # userfaultfd
        "298, 0, 0, 0, 0, 0",  # perf_event_open
        "250, 0, 0, 0, 0, 0",  # keyctl
        "248, 0, 0, 0, 0, 0",  # add_key
        "304, 0, 0, 0",  # open_by_handle_at
        "303, 0, 0, 0, 0, 0",  # name_to_handle_at
        "157, 4, 0, 0, 0, 0",  # prctl
        "317, 1, 0, 0",  # seccomp
        "444, 0, 0, 1",  # landlock
        "135, 0xffffffff",  # personality
        "105, 0",  # setuid
        "169, 0, 0, 0, 0",  # reboot
        "164, 0, 0",  # settimeofday
        "29, 0, 4096, 0x1b6",  # shmget
        "68, 0, 0x1b6",  # msgget
        "240, b'x', 0x42, 0, 0",  # mq_open
        "319, b'x', 0",  # memfd_create
        "447, 0",  # memfd_secret
        "437, -100, b'/etc/passwd', 0, 0",  # openat2
        "85, b'/tmp/posttrain-attack', 0x1b6",  # creat
    ),
    kernel("calls of the 32-bit interface of x86-64", *(f"0x40000000 + {number}" for number in (0, 2, 39, 57, 59))),
)
NETWORK = (
    refused(
        "sockets",
        *(f"socket.socket(socket.{kind})" for kind in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK")),
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        f"socket.create_connection(('127.0.0.1', {PORT}))",
        "socket.getaddrinfo('localhost', 80); socket.create_server(('', 0))",
    ),
    kernel("sockets by number", "41, 2, 1, 0", "41, 1, 1, 0", "41, 16, 3, 0", "41, 40, 1, 0"),
    Attack(
        "asyncio",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    print('ran')\nasyncio.run(main())",
        prints="ran",
    ),
)
HELD_BY_THE_KERNEL = (*PROCESSES, *FILES, *NETWORK)
ATTACKS = (*HELD_BY_THE_KERNEL, *RESOURCES)
