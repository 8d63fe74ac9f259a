/* SPDX-License-Identifier: MIT */
/* What the store asks of the system (store/os.h), call by call. store_macos_os is the same file with store/os_macos.c. */
#define _GNU_SOURCE
#include "store/base.h"
#include "store/kit/store_kit.h"
#include "store/os.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 64 };

static char *directory;

static int make_file(const char *name)
{
    int at = open(directory, O_RDONLY | O_DIRECTORY), fd;
    bool direct;
    KIT_REQUIRE(at >= 0);
    fd = quire_os_open_direct(at, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, &direct);
    KIT_REQUIRE(fd >= 0);
    KIT_REQUIRE(quire_os_open_direct(at, name, O_RDWR | O_CREAT | O_EXCL, &direct) < 0 && errno == EEXIST);
    KIT_REQUIRE(quire_os_open_direct(at, "none", O_RDWR, &direct) < 0 && errno == ENOENT);
    close(at);
    return fd;
}

static void fill(int fd)
{
    void *block;
    KIT_REQUIRE(!posix_memalign(&block, BLOCK, BLOCK));
    memset(block, 7, BLOCK);
    for (int i = 0; i < BLOCKS; i++)
        KIT_REQUIRE(pwrite(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK ||
                    (errno == EINVAL && quire_os_leave_direct(fd) && i-- >= 0));
    free(block);
}

static uint8_t first_byte(int fd, int block)
{
    void *bytes;
    KIT_REQUIRE(!posix_memalign(&bytes, BLOCK, BLOCK));
    KIT_REQUIRE(pread(fd, bytes, BLOCK, (off_t)block * BLOCK) == BLOCK);
    uint8_t first = *(uint8_t *)bytes;
    free(bytes);
    return first;
}

static void holes(void)
{
    struct stat before, after;
    int fd = make_file("holes");
    fill(fd);
    quire_os_read_as_asked(fd);
    quire_os_prefetch(fd, 0, BLOCKS * BLOCK);
    quire_os_prefetch(fd, 0, UINT64_C(1) << 40);
    quire_os_write_out(fd, 0, BLOCKS * BLOCK);
    quire_os_uncache(fd, 0, BLOCKS * BLOCK);
    KIT_REQUIRE(quire_os_sync(fd) && !fstat(fd, &before));
    KIT_REQUIRE(quire_os_punch(fd, 16 * BLOCK, 32 * BLOCK));
    KIT_REQUIRE(quire_os_punch(fd, 1 << 20, BLOCK) || !quire_os_cannot_punch(errno)); /* beyond the end */
    KIT_REQUIRE(quire_os_sync(fd) && !fstat(fd, &after));
    KIT_REQUIRE(after.st_size == before.st_size && after.st_blocks < before.st_blocks);
    KIT_REQUIRE(first_byte(fd, 15) == 7 && first_byte(fd, 16) == 0 && first_byte(fd, 47) == 0 &&
                first_byte(fd, 48) == 7);
    /* A hole may be taken for data, never data for a hole. */
    KIT_REQUIRE(quire_os_next_data(fd, 0) == 0 && quire_os_next_data(fd, 48 * BLOCK) == 48 * BLOCK);
    KIT_REQUIRE(quire_os_next_data(fd, 16 * BLOCK) >= 16 * BLOCK &&
                quire_os_next_data(fd, 16 * BLOCK) <= 48 * BLOCK);
    KIT_REQUIRE(quire_os_next_data(fd, BLOCKS * BLOCK) == UINT64_MAX);
    close(fd);
    KIT_REQUIRE(!quire_os_sync(fd) && errno == EBADF);
    KIT_REQUIRE(!quire_os_punch(fd, 0, BLOCK) && !quire_os_cannot_punch(errno));
    KIT_REQUIRE(*quire_os_punching_systems);
}

static void locks(void)
{
    char path[4200];
    int one = make_file("locks"), status;
    (void)snprintf(path, sizeof path, "%s/locks", directory);
    int two = open(path, O_RDWR), three = open(path, O_RDWR);
    KIT_REQUIRE(two >= 0 && three >= 0);
    KIT_REQUIRE(quire_os_lock(one, 0, F_WRLCK) && quire_os_lock(one, 1, F_RDLCK));
    KIT_REQUIRE(!quire_os_lock(two, 0, F_WRLCK) && (errno == EAGAIN || errno == EACCES));
    KIT_REQUIRE(!quire_os_lock(two, 0, F_RDLCK) && quire_os_lock(two, 1, F_RDLCK) &&
                quire_os_lock(two, 2, F_WRLCK));
    close(three); /* drops nothing, unlike a lock of the process */
    KIT_REQUIRE(!quire_os_lock(two, 0, F_WRLCK));
    pid_t child = fork();
    KIT_REQUIRE(child >= 0);
    if (!child) {
        int own = open(path, O_RDWR);
        if (own < 0) _exit(2);
        _exit(quire_os_lock(own, 0, F_WRLCK) ? 1 : errno == EAGAIN || errno == EACCES ? 0 : 3);
    }
    KIT_REQUIRE(waitpid(child, &status, 0) == child && status == 0); /* not in another process either */
    KIT_REQUIRE(quire_os_lock(one, 0, F_UNLCK) && quire_os_lock(two, 0, F_WRLCK));
    close(two); /* the last descriptor of it drops them */
    KIT_REQUIRE(quire_os_lock(one, 0, F_WRLCK) && quire_os_lock(one, 2, F_WRLCK));
    close(one);
}

static void boot(void)
{
    char a[64], b[64];
    size_t n = quire_os_boot(a, sizeof a);
    KIT_REQUIRE(n >= 32 && n <= sizeof a && quire_os_boot(b, sizeof b) == n && !memcmp(a, b, n));
}

/* ------------------------------------------------------------------ waiting */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static bool is_woken;

static void *wake(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    is_woken = true;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void waiting(void)
{
    pthread_t thread;
    KIT_REQUIRE(quire_cond_init(&cond));
    pthread_mutex_lock(&lock);
    uint64_t begin = quire_now(), deadline = quire_deadline(60);
    int calls = 1;
    while (quire_cond_wait_until(&cond, &lock, deadline)) calls++;
    KIT_REQUIRE(calls < 50); /* it waits, and does not ask again and again */
    KIT_REQUIRE(quire_now() >= deadline && quire_now() < begin + 10 * QUIRE_SECOND);
    KIT_REQUIRE(!quire_cond_wait_until(&cond, &lock, deadline)); /* long past */
    KIT_REQUIRE(quire_thread_start(&thread, wake, NULL));
    begin = quire_now();
    deadline = quire_deadline(20000);
    for (calls = 0; !is_woken; calls++) KIT_REQUIRE(quire_cond_wait_until(&cond, &lock, deadline));
    KIT_REQUIRE(calls < 50);
    KIT_REQUIRE(quire_now() < begin + 10 * QUIRE_SECOND);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&cond);
}

/* ------------------------------------------------------------------ sockets */

static long send_some(int fd, void *bytes, size_t n)
{
    struct iovec v = {bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    return quire_os_send(fd, &m);
}

static void sockets(void)
{
    static uint8_t much[1 << 20];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0), fd = quire_os_socket(AF_INET), peer;
    KIT_REQUIRE(server >= 0 && !bind(server, (struct sockaddr *)&address, n) && !listen(server, 1) &&
                !getsockname(server, (struct sockaddr *)&address, &n));
    KIT_REQUIRE(fd >= 0 && fcntl(fd, F_GETFD) & FD_CLOEXEC && fcntl(fd, F_GETFL) & O_NONBLOCK);
    KIT_REQUIRE(quire_os_socket(12345) < 0);
    KIT_REQUIRE(!connect(fd, (struct sockaddr *)&address, n) || errno == EINPROGRESS);
    KIT_REQUIRE((peer = accept(server, NULL, NULL)) >= 0);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    KIT_REQUIRE(quire_os_poll(&p, 1, QUIRE_SECOND) == 1 && p.revents & POLLOUT);
    KIT_REQUIRE(quire_os_unsent(fd) == 0);
    while (send_some(fd, much, sizeof much) > 0) {
    } /* nobody reads */
    KIT_REQUIRE(errno == EAGAIN && quire_os_unsent(fd) > 0);
    p = (struct pollfd){.fd = fd, .events = POLLIN};
    uint64_t begin = quire_now();
    KIT_REQUIRE(quire_os_poll(&p, 1, 1500 * QUIRE_MS / 100) == 0 && quire_now() - begin >= 14 * QUIRE_MS);
    uint64_t least = UINT64_MAX; /* a busy machine can take a second for nothing, but not every time */
    for (int i = 0; i < 5; i++) {
        begin = quire_now();
        KIT_REQUIRE(quire_os_poll(&p, 1, 0) == 0 && quire_os_poll(&p, 1, 1) == 0);
        if (quire_now() - begin < least) least = quire_now() - begin;
    }
    KIT_REQUIRE(least < QUIRE_SECOND);
    close(peer);
    close(server);
    KIT_REQUIRE(quire_os_poll(&p, 1, QUIRE_SECOND) == 1);
    for (int i = 0; i < 3; i++) /* a signal would end the program */
        if (send_some(fd, much, 1) < 0 && errno == EPIPE) break;
    KIT_REQUIRE(send_some(fd, much, 1) < 0);
    close(fd);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_DFL);
    directory = kit_directory(NULL);
    holes();
    locks();
    boot();
    waiting();
    sockets();
    kit_remove(directory);
    return 0;
}
