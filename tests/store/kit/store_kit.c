/* SPDX-License-Identifier: MIT */
/* What tests of the store share. */
#define _GNU_SOURCE
#include "store/kit/store_kit.h"

#include "support/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* -------------------------------------------------------------- directories */

char *kit_directory(const char *parent)
{
    char *path = NULL;
    const char *base = parent ? parent : getenv("TMPDIR");
    KIT_REQUIRE(asprintf(&path, "%s/quire-store-XXXXXX", base && *base ? base : "/tmp") > 0);
    KIT_REQUIRE(mkdtemp(path));
    return path;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void kit_remove(char *directory)
{
    (void)nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(directory);
}

uint64_t kit_directory_bytes(const char *directory)
{
    uint64_t bytes = 0;
    DIR *dir = opendir(directory);
    KIT_REQUIRE(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0) bytes += (uint64_t)st.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

/* ------------------------------------------------------------------- scenes */

quire_identity kit_identity(uint8_t tenant)
{
    static uint8_t secrets[256][32];
    memset(secrets[tenant], tenant ^ 0x5a, 32);
    return (quire_identity){sizeof(quire_identity), .weights = "weights-1",       .tokenizer = "tokenizer-1",
                            .adapter = "",          .rope = "base=10000 dims=64", .secret = secrets[tenant]};
}

quire_store_options kit_options(const char *directory, uint64_t cap, const quire_store_remote *remote)
{
    quire_store_options o = {sizeof(quire_store_options), .directory = directory, .disk_bytes = cap};
    o.remote = remote;
    return o;
}

quire_store *kit_open(const char *directory, uint64_t cap, const quire_store_remote *remote)
{
    char message[256] = "";
    quire_store_options o = kit_options(directory, cap, remote);
    quire_store *store = NULL;
    o.message = message;
    o.message_size = sizeof message;
    quire_status status = quire_store_open(&store, &o);
    if (status) fprintf(stderr, "open: %s: %s\n", quire_status_name(status), message);
    KIT_REQUIRE(!status);
    return store;
}

void kit_scene_begin_with(kit_scene *s, quire_store *store, const quire_geometry *g, const char *policy,
                          uint64_t seed, uint32_t max_tokens, uint32_t sinks)
{
    *s = (kit_scene){.g = *g, .store = store, .seed = seed};
    s->ring = (quire_seq_options){sizeof(quire_seq_options), max_tokens, sinks, 0, 0};
    quire_profile *profile = strstr(policy, "c:") ? kit_profile(g, 7, NULL) : NULL;
    s->plan = kit_plan(g, policy, profile);
    quire_profile_destroy(profile);
    s->pool = kit_pool(s->plan, 64u << 20, NULL);
    rng r = {seed + 1};
    for (size_t i = 0; i < sizeof s->tokens / sizeof *s->tokens; i++)
        s->tokens[i] = (uint32_t)(rng_bits(&r) % 50000);
    quire_identity id = kit_identity(1);
    if (store) KIT_REQUIRE(!quire_namespace_create(&s->ns, store, &id, s->plan, &s->ring));
}

void kit_scene_begin(kit_scene *s, quire_store *store, const char *policy, uint64_t seed)
{
    quire_geometry g = kit_geometry(2, 64, 64);
    kit_scene_begin_with(s, store, &g, policy, seed, 0, 0);
}

void kit_scene_end(kit_scene *s)
{
    quire_namespace_destroy(s->ns);
    kit_pool_is_empty(s->pool);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
}

quire_prompt kit_prompt(const kit_scene *s, uint32_t n)
{
    return (quire_prompt){.size = sizeof(quire_prompt), .tokens = s->tokens, .n_tokens = n};
}

quire_seq *kit_compute(kit_scene *s, uint32_t n, bool save)
{
    quire_seq *seq = NULL;
    KIT_REQUIRE(!quire_seq_create(&seq, s->pool, &s->ring));
    for (uint32_t done = 0, part; done < n; done += part) {
        part = n - done < 32 ? n - done : 32;
        KIT_REQUIRE(!kit_append(s->pool, &s->g, seq, part, s->seed));
        quire_prompt p = kit_prompt(s, done + part);
        if (save) KIT_REQUIRE(!quire_namespace_save(s->ns, &p, seq));
    }
    return seq;
}

quire_seq *kit_load(kit_scene *s, uint32_t n, uint32_t timeout_ms)
{
    quire_seq *seq = NULL;
    quire_load *load = NULL;
    quire_prompt p = kit_prompt(s, n);
    uint32_t length = UINT32_MAX;
    KIT_REQUIRE(!quire_seq_create(&seq, s->pool, &s->ring));
    KIT_REQUIRE(!quire_load_begin(&load, s->ns, &p, seq, timeout_ms));
    KIT_REQUIRE(!quire_load_end(load, &length));
    KIT_REQUIRE(length == quire_seq_length(seq) && length <= n);
    return seq;
}

uint64_t kit_sight(kit_scene *s, const quire_seq *seq)
{
    uint64_t rows = kit_rows_hash(&s->g, seq);
    uint64_t attention = kit_attend_hash(&s->g, seq, s->ring.max_tokens ? &s->ring : NULL, s->seed);
    return rows * 31 + attention;
}

quire_store_stats kit_stats(quire_store *store)
{
    quire_store_stats stats = {.size = sizeof stats};
    quire_store_stats_get(store, &stats);
    return stats;
}

/* ---------------------------------------------------------------- processes */

int kit_run(const char *const *args, uint32_t kill_after_us)
{
    char *argv[16] = {0}, self[] = "/proc/self/exe";
    argv[0] = self;
    for (int i = 0; args[i]; i++) argv[i + 1] = (char *)(uintptr_t)args[i];
    pid_t pid = fork();
    KIT_REQUIRE(pid >= 0);
    if (pid == 0) {
        execv(self, argv);
        _exit(127);
    }
    if (kill_after_us) {
        usleep(kill_after_us);
        kill(pid, SIGKILL);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) KIT_REQUIRE(errno == EINTR);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
