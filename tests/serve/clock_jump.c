/* SPDX-License-Identifier: MIT */
/*
 * For LD_PRELOAD: the time of day is wrong by the seconds that the file $CLOCK_JUMP_FILE holds as an int64_t, which a test changes
 * while the program runs. The monotonic clock stays right. Made by tests/serve/kill.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *jump;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_JUMP_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = fd >= 0 ? mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (found != MAP_FAILED) jump = (const int64_t *)found;
    if (fd >= 0) close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int wrong = (int)syscall(SYS_clock_gettime, clock, out);
    if (!wrong && jump && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += *jump;
    return wrong;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    int wrong = clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return wrong;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
