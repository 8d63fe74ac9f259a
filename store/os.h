/* SPDX-License-Identifier: MIT */
/*
 * store: what systems do differently. os_linux.c and os_macos.c have the same functions; one of them is compiled. Functions that return
 * bool set errno where they return false.
 */
#ifndef QUIRE_STORE_OS_H
#define QUIRE_STORE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct stat;

/* -------------------------------------------------------------------- files */

/* Locks one byte for this open file description, or unlocks it: how is F_RDLCK, F_WRLCK or F_UNLCK. Does not wait. Closing another
 * descriptor of the file does not drop such a lock, and the system drops it when the process ends. */
bool quire_os_lock(int fd, int at, short how);

/* Opens a file past the page cache where that can be done: *direct. */
int quire_os_open_direct(int directory_fd, const char *name, int flags, bool *direct);
/* For a transfer that was refused: from now on through the page cache. false: it was through it before. */
bool quire_os_leave_direct(int fd);

/* Nothing beyond what is asked for is read into the page cache. */
void quire_os_read_as_asked(int fd);
/* Begins to read a part into the page cache. */
void quire_os_prefetch(int fd, uint64_t at, uint64_t n);
/* Writes what is changed of a part and waits for it: only then can it be forgotten. */
void quire_os_write_out(int fd, uint64_t at, uint64_t n);
void quire_os_uncache(int fd, uint64_t at, uint64_t n);

/* Gives the space of whole blocks back; they read as zeros then, and the file keeps its length. */
bool quire_os_punch(int fd, uint64_t at, uint64_t n);
/* Whether this errno of quire_os_punch() says that the file system has no such thing. */
bool quire_os_cannot_punch(int error);
/* The file systems that have, for an error message. */
extern const char quire_os_punching_systems[];

/* Where the first byte at or after `at` is that is not known to lie in a hole; UINT64_MAX: the file has none. */
uint64_t quire_os_next_data(int fd, uint64_t at);

/* Bytes and holes of the file are there after a power failure. */
bool quire_os_sync(int fd);

/* When the file was last changed in any way. */
struct timespec quire_os_changed(const struct stat *st);

/* A text that differs after each start of the machine; 0 bytes: the system does not tell. */
size_t quire_os_boot(char *text, size_t size);

/* ------------------------------------------------------------------ sockets */

struct msghdr;
struct pollfd;

/* A stream socket that never waits, is closed by exec, and of which quire_os_send() raises no signal. -1: none. */
int quire_os_socket(int family);
/* As sendmsg(). */
long quire_os_send(int fd, const struct msghdr *message);
/* Bytes that were sent and that the peer has not acknowledged. */
size_t quire_os_unsent(int fd);
/* As poll(); returns no later than the next multiple of the system's resolution. */
int quire_os_poll(struct pollfd *polls, uint32_t n, uint64_t ns);

#endif
