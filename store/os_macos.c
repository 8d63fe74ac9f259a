/* SPDX-License-Identifier: MIT */
/* store: macOS 11 or later. Compiled on Linux too, with names of the SDK that tests/store/macos makes of Linux's. */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#endif
#include "store/base.h"
#include "store/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <time.h>
#include <unistd.h>

/* The kernel has it since macOS 10.13 at the latest, the SDK's headers only in later years. */
#if !defined(F_OFD_SETLK)
#define F_OFD_SETLK 90
#endif

/* ------------------------------------------------------------------ waiting */

bool quire_cond_init(pthread_cond_t *cond)
{
    return pthread_cond_init(cond, NULL) == 0;
}

/* Conditions of macOS have no choice of clocks: with one of the calendar, a clock that is set back would wait for hours. A relative wait
 * stands still while the system sleeps, so it is ended after a second; the caller looks at what it waits for and waits again. */
bool quire_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline)
{
    uint64_t now = quire_now(), ns = deadline > now ? deadline - now : 0;
    if (ns > QUIRE_SECOND) ns = QUIRE_SECOND;
    struct timespec t = {.tv_sec = (time_t)(ns / QUIRE_SECOND), .tv_nsec = (long)(ns % QUIRE_SECOND)};
    return pthread_cond_timedwait_relative_np(cond, lock, &t) == 0 || quire_now() < deadline;
}

/* -------------------------------------------------------------------- files */

/* What file systems answer to a command that they do not have. */
static bool is_unknown(int error)
{
    return error == ENOTSUP || error == EOPNOTSUPP || error == ENOSYS || error == ENOTTY;
}

bool quire_os_lock(int fd, int at, short how)
{
    struct flock lock = {.l_type = how, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* F_NOCACHE asks for it; transfers of any length and place are allowed all the same. */
int quire_os_open_direct(int directory_fd, const char *name, int flags, bool *direct)
{
    int fd = openat(directory_fd, name, flags, 0600);
    *direct = fd >= 0 && fcntl(fd, F_NOCACHE, 1) == 0;
    if (fd >= 0) quire_os_read_as_asked(fd);
    return fd;
}

bool quire_os_leave_direct(int fd)
{
    (void)fd;
    return false;
}

void quire_os_read_as_asked(int fd)
{
    (void)fcntl(fd, F_RDAHEAD, 0);
}

void quire_os_prefetch(int fd, uint64_t at, uint64_t n)
{
    struct radvisory part = {.ra_offset = (off_t)at, .ra_count = n < INT_MAX ? (int)n : INT_MAX};
    (void)fcntl(fd, F_RDADVISE, &part);
}

/* The system decides when: what was read or written with F_NOCACHE it does not keep. */
void quire_os_write_out(int fd, uint64_t at, uint64_t n)
{
    (void)fd, (void)at, (void)n;
}

void quire_os_uncache(int fd, uint64_t at, uint64_t n)
{
    (void)fd, (void)at, (void)n;
}

const char quire_os_punching_systems[] = "APFS";

bool quire_os_punch(int fd, uint64_t at, uint64_t n)
{
    fpunchhole_t hole = {.fp_offset = (off_t)at, .fp_length = (off_t)n};
    return fcntl(fd, F_PUNCHHOLE, &hole) == 0;
}

bool quire_os_cannot_punch(int error)
{
    return is_unknown(error);
}

/* Not asked: SEEK_DATA of APFS can pass over bytes that were written and have not reached the disk. */
uint64_t quire_os_next_data(int fd, uint64_t at)
{
    struct stat st;
    return fstat(fd, &st) || (uint64_t)st.st_size <= at ? UINT64_MAX : at;
}

/* fsync() leaves the bytes in the drive's own memory. Where the file system does not know F_FULLFSYNC, it is all that there is. */
bool quire_os_sync(int fd)
{
    if (fcntl(fd, F_FULLFSYNC) == 0) return true;
    return is_unknown(errno) && fsync(fd) == 0;
}

struct timespec quire_os_changed(const struct stat *st)
{
    return st->st_ctimespec;
}

size_t quire_os_boot(char *text, size_t size)
{
    return sysctlbyname("kern.bootsessionuuid", text, &size, NULL, 0) ? 0 : size;
}

/* ------------------------------------------------------------------ sockets */

/* Between socket() and fcntl() another thread's fork and exec can inherit the socket: there is no way to ask for both at once. */
int quire_os_socket(int family)
{
    int one = 1, fd = socket(family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK) ||
        setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one)) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

long quire_os_send(int fd, const struct msghdr *message)
{
    return sendmsg(fd, message, 0); /* SO_NOSIGPIPE */
}

size_t quire_os_unsent(int fd)
{
    int n = 0;
    socklen_t size = sizeof n;
    return getsockopt(fd, SOL_SOCKET, SO_NWRITE, &n, &size) == 0 && n > 0 ? (size_t)n : 0;
}

/* Whole milliseconds, never fewer than were asked for: 0 would ask again and again until the time has come. */
int quire_os_poll(struct pollfd *polls, uint32_t n, uint64_t ns)
{
    uint64_t ms = (ns + QUIRE_MS - 1) / QUIRE_MS;
    return poll(polls, n, ms < INT_MAX ? (int)ms : INT_MAX);
}

/* ------------------------------------------------------------------ loading */

#if defined(QUIRE_STORE_STAYS_LOADED)
/* OpenSSL is inside: each thread that used it calls it when it ends, and the library may have been closed by then. */
__attribute__((constructor)) static void stay_loaded(void)
{
    Dl_info here;
    if (dladdr(quire_os_punching_systems, &here))
        (void)dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}
#endif
