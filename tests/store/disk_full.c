/* SPDX-License-Identifier: MIT */
/* A full disk and a directory that cannot be written: saves fail and are counted, loads and the engine go on. */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAP (64ull << 20)

/* A small file system of our own if we may mount one; otherwise files that may not grow. */
static const char *make_small(const char *directory)
{
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("tmpfs", directory, "tmpfs", 0, "size=6m") == 0)
        return "a file system of 6 MiB";
    struct rlimit limit = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    KIT_REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    return "files of at most 1 MiB";
}

static void full(void)
{
    char *dir = kit_directory(NULL);
    kit_raw raw;
    const char *how = make_small(dir);
    quire_store *store = kit_open(dir, CAP, NULL);
    kit_raw_begin(&raw, store, 100000);
    for (uint64_t text = 0; text < 40; text++) {
        kit_raw_save(&raw, text, 5); /* 20 MB in all */
        KIT_REQUIRE(!quire_store_flush(store, 20000));
    }
    quire_store_stats s = kit_stats(store);
    printf("%s: %llu saved, %llu failed, %llu objects\n", how, (unsigned long long)s.saved[0],
           (unsigned long long)s.failed[0], (unsigned long long)s.disk_objects);
    KIT_REQUIRE(s.failed[0] > 0 && s.saved[0] > 0 && s.disk_objects > 0);
    uint32_t n = 0;
    for (uint64_t text = 0; text < 40; text++) n += kit_raw_load(&raw, text, 5, 5000);
    KIT_REQUIRE(n > 0 && n <= s.disk_objects);
    (void)kit_verify(store);
    kit_raw_end(&raw);
    quire_store_close(store);
    store = kit_open(dir, CAP, NULL); /* and opens again */
    kit_raw_begin(&raw, store, 100000);
    uint32_t again = 0;
    for (uint64_t text = 0; text < 40; text++) again += kit_raw_load(&raw, text, 5, 5000);
    KIT_REQUIRE(again == n);
    kit_raw_end(&raw);
    quire_store_close(store);
    (void)umount(dir);
    kit_remove(dir);
}

static void read_only(void)
{
    char *dir = kit_directory(NULL), message[256] = "";
    quire_store *store = NULL;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=6m,mode=555") == 0) {
        KIT_REQUIRE(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) ==
                    0); /* root may write into mode 555 */
    } else if (geteuid() == 0 || chmod(dir, 0555)) {
        printf("read-only directory: left out, no way to make one here\n");
        kit_remove(dir);
        return;
    }
    quire_store_options o = kit_options(dir, CAP, NULL);
    o.message = message;
    o.message_size = sizeof message;
    KIT_REQUIRE(quire_store_open(&store, &o) == QUIRE_EIO && *message && !store);
    printf("read-only directory: %s\n", message);
    (void)umount(dir);
    (void)chmod(dir, 0700);
    kit_remove(dir);
}

/* Writing fails under a store that is open, and works again later. */
static void fails_and_recovers(void)
{
    char *dir = kit_directory(NULL);
    kit_raw raw;
    if (mount("tmpfs", dir, "tmpfs", 0, "size=32m")) {
        kit_remove(dir);
        return;
    }
    quire_store *store = kit_open(dir, 24u << 20, NULL);
    kit_raw_begin(&raw, store, 100000);
    kit_raw_save(&raw, 1, 5);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    struct rlimit none = {0, RLIM_INFINITY}; /* no file may be written any more */
    signal(SIGXFSZ, SIG_IGN);
    KIT_REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    kit_raw_save(&raw, 2, 5);
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    KIT_REQUIRE(kit_stats(store).failed[0] == 5);
    KIT_REQUIRE(kit_raw_load(&raw, 1, 5, 5000) == 5);
    KIT_REQUIRE(kit_raw_load(&raw, 2, 5, 5000) == 0);
    struct rlimit any = {RLIM_INFINITY, RLIM_INFINITY};
    KIT_REQUIRE(setrlimit(RLIMIT_FSIZE, &any) == 0);
    kit_raw_save(&raw, 3, 5); /* it recovers by itself */
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    KIT_REQUIRE(kit_raw_load(&raw, 3, 5, 5000) == 5);
    kit_raw_end(&raw);
    quire_store_close(store);
    (void)umount(dir);
    kit_remove(dir);
}

int main(void)
{
    full();
    read_only();
    fails_and_recovers();
    return 0;
}
