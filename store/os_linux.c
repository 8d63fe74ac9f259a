/* SPDX-License-Identifier: MIT */
/* store: Linux. */
#define _GNU_SOURCE
#include "store/base.h"
#include "store/os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------ waiting */

bool quire_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr)) return false;
    bool done = !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) && !pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return done;
}

bool quire_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline)
{
    struct timespec t = {.tv_sec = (time_t)(deadline / QUIRE_SECOND),
                         .tv_nsec = (long)(deadline % QUIRE_SECOND)};
    return pthread_cond_timedwait(cond, lock, &t) == 0 || quire_now() < deadline;
}

/* -------------------------------------------------------------------- files */

bool quire_os_lock(int fd, int at, short how)
{
    struct flock lock = {.l_type = how, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

int quire_os_open_direct(int directory_fd, const char *name, int flags, bool *direct)
{
    int fd = openat(directory_fd, name, flags | O_DIRECT, 0600);
    *direct = fd >= 0;
    if (fd < 0 && errno == EINVAL) { /* the file was made all the same */
        fd = openat(directory_fd, name, flags & ~O_EXCL, 0600);
        if (fd >= 0) quire_os_read_as_asked(fd);
    }
    return fd;
}

bool quire_os_leave_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || !(flags & O_DIRECT) || fcntl(fd, F_SETFL, flags & ~O_DIRECT)) return false;
    quire_os_read_as_asked(fd);
    return true;
}

void quire_os_read_as_asked(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

void quire_os_prefetch(int fd, uint64_t at, uint64_t n)
{
    (void)posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_WILLNEED);
}

void quire_os_write_out(int fd, uint64_t at, uint64_t n)
{
    (void)sync_file_range(fd, (off_t)at, (off_t)n,
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

void quire_os_uncache(int fd, uint64_t at, uint64_t n)
{
    (void)posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
}

const char quire_os_punching_systems[] = "ext4, XFS, Btrfs and tmpfs";

bool quire_os_punch(int fd, uint64_t at, uint64_t n)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) == 0;
}

bool quire_os_cannot_punch(int error)
{
    return error == EOPNOTSUPP || error == ENOSYS;
}

uint64_t quire_os_next_data(int fd, uint64_t at)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    struct stat st;
    if (data >= 0) return (uint64_t)data;
    if (errno == ENXIO || fstat(fd, &st) || (uint64_t)st.st_size <= at) return UINT64_MAX;
    return at; /* a file system that cannot tell */
}

bool quire_os_sync(int fd)
{
    return fdatasync(fd) == 0;
}

struct timespec quire_os_changed(const struct stat *st)
{
    return st->st_ctim;
}

size_t quire_os_boot(char *text, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size);
    if (fd >= 0) close(fd);
    return n > 0 ? (size_t)n : 0;
}

/* ------------------------------------------------------------------ sockets */

int quire_os_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

long quire_os_send(int fd, const struct msghdr *message)
{
    return sendmsg(fd, message, MSG_NOSIGNAL);
}

size_t quire_os_unsent(int fd)
{
    int n = 0;
    return ioctl(fd, SIOCOUTQ, &n) == 0 && n > 0 ? (size_t)n : 0;
}

int quire_os_poll(struct pollfd *polls, uint32_t n, uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / QUIRE_SECOND), .tv_nsec = (long)(ns % QUIRE_SECOND)};
    return ppoll(polls, n, &t, NULL);
}
