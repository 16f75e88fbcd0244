"""A wall clock of their own for real processes: ahead, behind, set while they run, or standing still.

Used like this:

    clock = WallClock(folder / "clock")
    process = subprocess.Popen([...], env=os.environ | clock.env)
    clock.ahead(600)                    # all of its processes think that it is ten minutes later
    clock.stands(1_700_000_000)         # ... and now that no time passes

A library that is loaded before the C library answers for the clock; how long things take is not touched. The kernel
has namespaces for the monotonic clock, not for this one.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct told { volatile long long ahead, stands; };
static struct told *told;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("WALL_CLOCK");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof(struct told), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) told = page;
    close(fd);
}

static long long here(void) {
    struct timespec at;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static long long shown(void) { return told && told->stands ? told->stands : here() + (told ? told->ahead : 0); }

int clock_gettime(clockid_t id, struct timespec *at) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, id, at);
    long long ns = shown();
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    long long ns = shown();
    at->tv_sec = ns / 1000000000LL;
    at->tv_usec = ns % 1000000000LL / 1000;
    return 0;
}

time_t time(time_t *at) {
    time_t s = shown() / 1000000000LL;
    if (at) *at = s;
    return s;
}

/* the kernel waits by its own clock */
int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real) real = (int (*)(pthread_mutex_t *, const struct timespec *))dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    long long ns = until->tv_sec * 1000000000LL + until->tv_nsec - shown() + here();
    struct timespec at = { ns / 1000000000LL, ns % 1000000000LL };
    return real(mutex, &at);
}
"""


class NoCompiler(Exception):
    """There is none here."""


def _library(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompiler("there is no cc")
    source, library = folder / "wall_clock.c", folder / "wall_clock.so"
    if not library.exists():
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class WallClock:
    """See the module; every process that has `env` shows the same time.

    Raises:
        NoCompiler: it cannot be made here.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.write_bytes(bytes(16))
        self.env = {"LD_PRELOAD": str(_library(file.parent)), "WALL_CLOCK": str(file)}

    def _tell(self, ahead: float, stands: float) -> None:
        with self._file.open("r+b") as page:
            page.write(struct.pack("=qq", int(ahead * 1e9), int(stands * 1e9)))

    def ahead(self, seconds: float) -> None:
        """Show the right time and so many seconds more."""
        self._tell(seconds, 0)

    def stands(self, at: float) -> None:
        """Show this time (seconds since the epoch) and no other."""
        self._tell(0, at)

    def shows(self) -> float:
        """What a new process takes for the time."""
        shown = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time())"], env=self.env, check=True, capture_output=True
        )
        return float(shown.stdout)
