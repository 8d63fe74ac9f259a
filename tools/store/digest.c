/* SPDX-License-Identifier: MIT */
/* digest: lines of "DIGEST DEVICE INODE SIZE MTIME CTIME CHECK", the newest first; CHECK is the beginning of the line's own SHA-256. */
#define _GNU_SOURCE
#include "store/digest.h"

#include "files/private_file.h"
#include "store/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD "quire digests 1\n"
#define MAX_LINES 64u
#define LINE 320u
#define CHECK_DIGITS 16u
/* A file that changed a moment ago can change again within the resolution of its times. */
#define YOUNG_S 3

typedef struct lines {
    char line[MAX_LINES][LINE];
    uint32_t n;
} lines;

static void to_hex(char *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) sprintf(to + 2 * i, "%02x", bytes[i]);
}

static bool from_hex(uint8_t *to, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        if (strspn(text + 2 * i, "0123456789abcdef") < 2 || sscanf(text + 2 * i, "%2x", &value) != 1)
            return false;
        to[i] = (uint8_t)value;
    }
    return true;
}

static void print_check(const char *text, size_t n, char check[CHECK_DIGITS + 1])
{
    uint8_t digest[EVP_MAX_MD_SIZE] = {0};
    (void)EVP_Digest(text, n, digest, NULL, EVP_sha256(), NULL);
    to_hex(check, digest, CHECK_DIGITS / 2);
}

/* What the file is, with a space before and after. */
static void print_identity(const struct stat *st, char *text, size_t size)
{
    snprintf(text, size, " %llu %llu %lld %lld.%09ld %lld.%09ld ", (unsigned long long)st->st_dev,
             (unsigned long long)st->st_ino, (long long)st->st_size, (long long)st->st_mtim.tv_sec,
             st->st_mtim.tv_nsec, (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
}

static bool is_whole(const char *line)
{
    size_t n = strlen(line);
    char check[CHECK_DIGITS + 1];
    if (n < 64 + CHECK_DIGITS + 2 || line[64] != ' ') return false;
    print_check(line, n - CHECK_DIGITS, check);
    return strcmp(line + n - CHECK_DIGITS, check) == 0;
}

/* "" if there is no place for it. */
static void find_place(char *path, size_t size)
{
    const char *own = getenv("QUIRE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = own && *own     ? snprintf(path, size, "%s", own)
            : xdg && *xdg   ? snprintf(path, size, "%s/quire", xdg)
            : home && *home ? snprintf(path, size, "%s/.cache/quire", home)
                            : 0;
    if (n <= 0 || (size_t)n + sizeof "/digests" > size) {
        *path = 0;
        return;
    }
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) { /* the directories above it */
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
    snprintf(path + n, size - (size_t)n, "/digests");
}

/* Nothing from a file that somebody else could have written: a wrong digest would put rows of one model under the keys of another. */
static void read_lines(lines *l, const char *path)
{
    char line[LINE];
    struct stat st;
    int fd = *path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    l->n = 0;
    if (f && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) &&
        fgets(line, sizeof line, f) && strcmp(line, HEAD) == 0)
        while (l->n < MAX_LINES && fgets(line, sizeof line, f)) {
            line[strcspn(line, "\n")] = 0;
            if (is_whole(line)) memcpy(l->line[l->n++], line, sizeof line);
        }
    if (f)
        fclose(f);
    else if (fd >= 0)
        close(fd);
}

/* Of two processes that write at once, one is forgotten: it computes again. */
static void remember(const char *path, const char *identity, const uint8_t digest[32], const lines *before)
{
    char line[LINE], check[CHECK_DIGITS + 1];
    private_file f;
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) return;
    to_hex(line, digest, 32);
    snprintf(line + 64, sizeof line - 64, "%s", identity);
    print_check(line, strlen(line), check);
    if (!private_open(&f, path)) return;
    fprintf(f.stream, HEAD "%s%s\n", line, check);
    for (uint32_t i = 0, kept = 1; i < before->n && kept < MAX_LINES; i++)
        if (!strstr(before->line[i], identity)) fprintf(f.stream, "%s\n", before->line[i]), kept++;
    (void)private_close(&f, true);
}

static bool is_older_than(const struct timespec *t, time_t limit)
{
    return t->tv_sec < limit;
}

bool digest_file(const char *path, uint8_t digest[32])
{
    static lines known;
    char place[4096], identity[200], after[200];
    struct stat st;
    time_t limit = time(NULL) - YOUNG_S;
    if (stat(path, &st)) return false;
    bool is_settled =
        S_ISREG(st.st_mode) && is_older_than(&st.st_mtim, limit) && is_older_than(&st.st_ctim, limit);
    if (!is_settled) return sha256_file(path, digest);
    print_identity(&st, identity, sizeof identity);
    find_place(place, sizeof place);
    read_lines(&known, place);
    for (uint32_t i = 0; i < known.n; i++)
        if (strncmp(known.line[i] + 64, identity, strlen(identity)) == 0 &&
            from_hex(digest, known.line[i], 32))
            return true;
    if (!sha256_file(path, digest)) return false;
    if (!*place || stat(path, &st)) return true;
    print_identity(&st, after, sizeof after);
    if (strcmp(identity, after) == 0)
        remember(place, identity, digest, &known); /* it did not change meanwhile */
    return true;
}
