/* SPDX-License-Identifier: MIT */
/* Removal of a tenant while other processes change what it works on at the worst moment; limits that could not be written. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/disk_inside.h"
#include "store/kit/file_kit.h"
#include "store/kit/tenant_kit.h"
#include "store/store.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 5000u
#define PAGES 8u

/* ------------------------------------------------------------ other processes */

static const char *hook_directory, *hook_work;
static _Thread_local int hook_in; /* transactions of this thread until it is called */

static void run(const char *dir, const char *what)
{
    char self[600] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pid_t pid = fork();
    if (!pid) {
        (void)execl(self, self, what, dir, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

/* The system's functions. Looked up before there are threads. */
static int (*real_stat)(const char *restrict, struct stat *restrict);
static DIR *(*real_fdopendir)(int);

__attribute__((constructor)) static void find_real(void)
{
    *(void **)&real_stat = dlsym(RTLD_NEXT, "stat");
    *(void **)&real_fdopendir = dlsym(RTLD_NEXT, "fdopendir");
}

/* The store looks whether its directory is in place before every transaction. */
int stat(const char *restrict path, struct stat *restrict st)
{
    if (hook_in && hook_directory && !strcmp(path, hook_directory) && --hook_in == 0)
        run(hook_directory, hook_work);
    if (!real_stat) find_real(); /* another library's constructor */
    return real_stat(path, st);
}

static uint64_t remove_tenant(quire_store *store, uint8_t number, quire_status expected)
{
    uint8_t tenant[16];
    uint64_t n = 0;
    kit_tenant_id(number, tenant);
    quire_store_selection s = {.size = sizeof s, .tenant = tenant};
    assert_int_equal(quire_store_remove(store, &s, &n), expected);
    return n;
}

static void save(quire_store *store, uint8_t number)
{
    kit_tenant t;
    kit_tenant_begin(&t, store, number, "name", "model", BYTES);
    kit_raw_save(&t.raw, number, PAGES);
    kit_tenants_flush(store);
    kit_tenant_end(&t);
}

static uint32_t load(quire_store *store, uint8_t number)
{
    kit_tenant t;
    kit_tenant_begin(&t, store, number, "name", "model", BYTES);
    uint32_t n = kit_raw_load(&t.raw, number, PAGES, 5000);
    kit_tenant_end(&t);
    return n;
}

static int work(const char *what, const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%s/index", dir);
    if (!strcmp(what, "anew")) (void)unlink(path);
    quire_store *store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    if (!strcmp(what, "replace")) {
        (void)remove_tenant(store, 1, QUIRE_OK);
        save(store, 2);
    }
    quire_store_close(store);
    return 0;
}

/* ------------------------------------------------------------------ removal */

/* Another process removes the tenant between two looks, and another tenant gets its number in the index. */
static void number_is_used_again(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    for (int when = 1; when < 6; when++) {
        save(store, 1);
        hook_directory = dir;
        hook_work = "replace";
        hook_in = when;
        (void)remove_tenant(store, 1, QUIRE_OK);
        hook_in = 0;
        assert_int_equal(load(store, 1), 0);
        assert_int_equal(load(store, 2), PAGES);
        (void)remove_tenant(store, 2, QUIRE_OK);
    }
    quire_store_close(store);
    kit_remove(dir);
}

/* Another process makes the index anew between two looks, and finds what is not given back yet. */
static void index_is_made_anew(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    for (int when = 1; when < 7; when++) {
        save(store, 2);
        save(store, 1);
        hook_directory = dir;
        hook_work = "anew";
        hook_in = when;
        (void)remove_tenant(store, 1, QUIRE_OK);
        hook_in = 0;
        assert_int_equal(load(store, 1), 0);
        assert_int_equal(load(store, 2), PAGES);
    }
    quire_store_close(store);
    kit_remove(dir);
}

static atomic_bool is_short; /* of memory for slabs */

static void *take(void *ctx, size_t bytes)
{
    (void)ctx;
    return is_short && bytes == sizeof(quire_slab) ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}

static void give(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(ptr);
}

/* Slabs that cannot be opened now are not gone: their bytes are still there. */
static void slabs_cannot_be_opened(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    save(store, 1);
    quire_store_close(store);
    quire_allocator a = {.size = sizeof a, .alloc = take, .free = give};
    quire_store_options o = {.size = sizeof o, .directory = dir, .allocator = &a};
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    is_short = true;
    (void)remove_tenant(store, 1, QUIRE_EIO);
    is_short = false;
    (void)remove_tenant(store, 1, QUIRE_OK);
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    assert_int_equal(load(store, 1), 0);
    quire_store_close(store);

    /* The same while an index is made anew: pages are not left out. */
    store = kit_open(dir, 0, NULL);
    save(store, 1);
    quire_store_close(store);
    assert_int_equal(unlink(path), 0);
    is_short = true;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    usleep(300000);
    is_short = false;
    kit_wait_for_scan(store);
    assert_int_equal(load(store, 1), PAGES);
    quire_store_close(store);
    kit_remove(dir);
}

static atomic_bool is_unreadable; /* the directory, for want of descriptors */

DIR *fdopendir(int fd)
{
    errno = EMFILE;
    return is_unreadable ? NULL : real_fdopendir(fd);
}

/* Slabs that cannot be listed are not gone either: an index that knows of none would have them overwritten. */
static void slabs_cannot_be_listed(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    save(store, 1);
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    quire_store_options o = {.size = sizeof o, .directory = dir};
    is_unreadable = true;
    if (!quire_store_open(&store, &o)) {
        save(store, 2);
        quire_store_close(store);
    }
    is_unreadable = false;
    store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    assert_int_equal(load(store, 1), PAGES);
    is_unreadable = true;
    (void)remove_tenant(store, 1, QUIRE_EIO);
    is_unreadable = false;
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------------- limits */

/* The index is locked when the store is opened: the limit holds for this process all the same. */
static void limit_while_locked(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600], byte;
    int ready[2], go[2];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork();
    if (!pid) {
        sqlite3 *db;
        close(go[1]);
        int bad = sqlite3_open(path, &db) || sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ||
                  write(ready[1], "x", 1) != 1;
        _exit(bad || read(go[0], &byte, 1) > 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    quire_store_options o = {
        .size = sizeof o, .directory = dir, .tenant_bytes = 4 * quire_record_bytes(BYTES)};
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    close(go[0]);
    close(go[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    usleep(1200000); /* nobody waits long behind a lock that did not come */
    save(store, 1);
    kit_usage u = kit_usage_get(store);
    assert_int_equal(u.n, 1);
    assert_true(u.one[0].bytes <= o.tenant_bytes);
    quire_store_close(store);
    kit_remove(dir);
}

/* A file of limits that is far too large for one: its length is nothing that the pages must make room for. */
static void file_of_limits_is_large(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    save(store, 1);
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/quotas", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), 1ll << 40), 0);
    fclose(f);
    store = kit_open(dir, 0, NULL);
    save(store, 2);
    assert_int_equal(load(store, 1), PAGES);
    assert_int_equal(load(store, 2), PAGES);
    quire_store_close(store);
    kit_remove(dir);
}

/* Limits that this version cannot read are not replaced by the one that is set. When the file is whole again, all hold. */
static void file_of_limits_is_not_read(void **state)
{
    (void)state;
    static const struct {
        uint64_t at[2]; /* bytes of which a bit is flipped; the version has its complement behind it */
        quire_status status;
        const char *sentence;
    } cases[] = {{{8, 12}, QUIRE_EVERSION, "another version"},
                 {{8, 0}, QUIRE_EFORMAT, "is damaged"},
                 {{40, 41}, QUIRE_EFORMAT, "is damaged"}};
    char *dir = kit_directory(NULL), path[600];
    const uint8_t one[16] = {1}, two[16] = {2};
    snprintf(path, sizeof path, "%s/quotas", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_log log = {0};
        quire_log l = {sizeof l, &log, kit_log_write};
        quire_store_options o = kit_options(dir, KIT_CAP, NULL);
        quire_store *store = NULL;
        o.log = &l;
        assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
        assert_int_equal(quire_store_set_quota(store, one, 1 << 20), QUIRE_OK);
        for (int k = 0; k < 2; k++) kit_flip_bit(path, cases[i].at[k], 1);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(quire_store_set_quota(store, two, 2 << 20), cases[i].status);
            assert_non_null(strstr(log.last, cases[i].sentence));
        }
        assert_int_equal(quire_disk_quota(store->disk, one), QUIRE_NO_QUOTA);
        assert_int_equal(log.n_warnings, 2);
        quire_store_close(store);
        o.tenant_bytes = 3 << 20; /* of this process only */
        assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
        assert_int_equal(quire_disk_quota(store->disk, one), 3 << 20);
        for (int k = 0; k < 2; k++) kit_flip_bit(path, cases[i].at[k], 1);
        assert_int_equal(quire_disk_quota(store->disk, one), 1 << 20);
        assert_int_equal(quire_store_set_quota(store, two, 2 << 20), QUIRE_OK);
        assert_int_equal(quire_disk_quota(store->disk, one), 1 << 20);
        assert_int_equal(quire_disk_quota(store->disk, two), 2 << 20);
        assert_int_equal(quire_store_set_quota(store, two, 0), QUIRE_OK);
        quire_store_close(store);
    }
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 3) return work(argv[1], argv[2]);
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_is_used_again),       cmocka_unit_test(index_is_made_anew),
        cmocka_unit_test(slabs_cannot_be_opened),     cmocka_unit_test(limit_while_locked),
        cmocka_unit_test(file_of_limits_is_large),    cmocka_unit_test(slabs_cannot_be_listed),
        cmocka_unit_test(file_of_limits_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
