/* SPDX-License-Identifier: MIT */
/* Things that lie in the directory and should not: what a power failure left of the head file, and other kinds of files under the
 * names of ours. The store opens, saves and loads; nothing outside of the directory is touched; nothing hangs. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 20000u
#define PAGES 4u

/* Opens, saves and loads, in this process. */
static void use(const char *dir, uint64_t text)
{
    kit_raw raw;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, text, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), 0);
    assert_int_equal(kit_raw_load(&raw, text, PAGES, 5000), PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);
}

static void plant(const char *dir, const char *name, const char *what, const char *target)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
    if (!strcmp(what, "fifo")) assert_int_equal(mkfifo(path, 0600), 0);
    if (!strcmp(what, "directory")) assert_int_equal(mkdir(path, 0700), 0);
    if (!strcmp(what, "link")) assert_int_equal(symlink(target, path), 0);
    if (!strcmp(what, "zeros")) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, 64) == 0);
        close(fd);
    }
}

static void head_of_zeros(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    plant(dir, "quire-store", "zeros", NULL);
    use(dir, 1);
    kit_remove(dir);
}

/* Where the next slab would be made, and where one was. */
static void slabs(void **state)
{
    static const char *const kinds[] = {"fifo", "directory", "link"};
    (void)state;
    char *outside = kit_directory(NULL), target[600];
    struct stat st;
    snprintf(target, sizeof target, "%s/target", outside);
    for (int i = 0; i < 3; i++) {
        char *dir = kit_directory(NULL);
        plant(dir, "slab-00000001", kinds[i], target);
        alarm(60);
        use(dir, 1);
        plant(dir, "slab-00000002", kinds[i], target);
        use(dir, 2);
        alarm(0);
        assert_int_not_equal(stat(target, &st), 0);
        kit_remove(dir);
    }
    kit_remove(outside);
}

static void index_files(void **state)
{
    (void)state;
    char *outside = kit_directory(NULL), target[600];
    struct stat st;
    snprintf(target, sizeof target, "%s/target", outside);
    static const char *const kinds[] = {"link", "fifo"}, *const names[] = {"index", "index-journal",
                                                                           "index.new"};
    for (int i = 0; i < 6; i++) {
        char *dir = kit_directory(NULL);
        use(dir, 1);
        plant(dir, names[i / 2], kinds[i % 2], target);
        alarm(60);
        use(dir, 2);
        alarm(0);
        assert_int_not_equal(stat(target, &st), 0);
        kit_remove(dir);
    }
    kit_remove(outside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_of_zeros),
        cmocka_unit_test(slabs),
        cmocka_unit_test(index_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
