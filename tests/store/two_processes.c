/* SPDX-License-Identifier: MIT */
/* Two processes save and load the same prefixes in one directory at the same time: no damage, nothing twice. */
#define _GNU_SOURCE
#include "store/kit/raw_kit.h"
#include "store/base.h"
#include "support/random.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAP (32ull << 20)
#define TEXTS 60u

static int work(const char *directory, uint64_t seed)
{
    rng r = {seed};
    kit_raw raw[2];
    uint32_t n_loaded = 0;
    quire_store *store = kit_open(directory, CAP, NULL);
    kit_raw_begin(&raw[0], store, 50000);
    kit_raw_begin(&raw[1], store, 170000);
    /* Three seconds; more where there is little time for it. */
    for (uint64_t begin = quire_now(), now = begin;
         now < begin + 3 * QUIRE_SECOND || (n_loaded <= 20 && now < begin + 60 * QUIRE_SECOND);
         now = quire_now()) {
        kit_raw *at = &raw[rng_bits(&r) % 2];
        uint64_t text = rng_bits(&r) % TEXTS;
        kit_raw_save(at, text, 6);
        n_loaded += kit_raw_load(at, rng_bits(&r) % TEXTS, 6, 2000);
    }
    KIT_REQUIRE(!quire_store_flush(store, 20000));
    quire_store_stats s = kit_stats(store);
    printf("%llu saved, %llu known, %llu evicted, %u loaded\n", (unsigned long long)s.saved[0],
           (unsigned long long)s.known[0], (unsigned long long)s.evicted, n_loaded);
    KIT_REQUIRE(n_loaded > 20 && s.failed[0] == 0);
    for (int i = QUIRE_MISS_MAGIC; i <= QUIRE_MISS_DISK; i++) KIT_REQUIRE(s.misses[i] == 0);
    kit_raw_end(&raw[0]);
    kit_raw_end(&raw[1]);
    quire_store_close(store);
    return 0;
}

static pid_t begin(const char *directory, const char *seed)
{
    char self[] = "/proc/self/exe", word[] = "work";
    char *argv[] = {self, word, (char *)(uintptr_t)directory, (char *)(uintptr_t)seed, NULL};
    pid_t pid = fork();
    KIT_REQUIRE(pid >= 0);
    if (pid) return pid;
    execv(self, argv);
    _exit(127);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "work") == 0) return work(argv[2], strtoull(argv[3], NULL, 10));
    char *dir = kit_directory(NULL);
    pid_t a = begin(dir, "1"), b = begin(dir, "2");
    int sa, sb;
    KIT_REQUIRE(waitpid(a, &sa, 0) == a && waitpid(b, &sb, 0) == b);
    KIT_REQUIRE(WIFEXITED(sa) && WEXITSTATUS(sa) == 0 && WIFEXITED(sb) && WEXITSTATUS(sb) == 0);
    quire_store *store = kit_open(dir, CAP, NULL);
    printf("%llu objects, none twice\n", (unsigned long long)kit_verify(store));
    KIT_REQUIRE(kit_directory_bytes(dir) <= CAP);
    quire_store_close(store);
    kit_remove(dir);
    return 0;
}
