/* SPDX-License-Identifier: MIT */
/* quire serve: a llama-server behind this program, which keeps prompts that were computed once. */
#define _GNU_SOURCE
#include "commands.h"

#include "common/place.h"
#include "llama/host_arguments.h"
#include "serve/flags.h"
#include "serve/sidecar.h"
#include "store/options.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, IDLE_SECONDS = 60 };
#define MOST_BODY (256u << 20)

typedef struct serve {
    store_options store; /* first: the options of the store are parsed into it */
    const char *kv, *profile;
    uint32_t min_tokens, restore_least;
    bool log;
    int argc; /* of the server */
    char **argv;

    model model;
    bool has_model, with_device;
    char kv_name[512]; /* what the rows are, for the keys of pages */
    char folder[64], socket[80], directory[PLACE_SIZE], secret_file[PLACE_SIZE + 16], program[PLACE_SIZE];
    char authorization[600];
    serve_flags flags;
    quire_store *open_store;
    quire_identity identity;
} serve;

static void set_rest(void *ctx, int argc, char **argv)
{
    serve *s = (serve *)ctx;
    s->argc = argc;
    s->argv = argv;
}

static const tool_option options[] = {
    {"--kv", "POLICY",
     "how the cache is kept, as of quire run (default: safe); none: as llama-server keeps it by itself,\n"
     "without Quire's device",
     TOOL_WORD(serve, kv)},
    {"--profile", "FILE", "the profile of the model, as of quire run", TOOL_WORD(serve, profile)},
    {"--store", "DIRECTORY", "where prompts are kept (default: ~/.cache/quire/pages); none: nowhere on disk",
     TOOL_WORD(serve, store.directory)},
    {"--store-size", "BYTES",
     "limit of its files, such as 200G (default: that of the directory; of a new one 20G, at most a\n"
     "tenth of the space that is free)",
     TOOL_BYTES(serve, store.cap_bytes, 0, STORE_MAX_BYTES)},
    {"--secret-file", "FILE",
     "32 bytes or 64 hex digits, the same on all servers that share prompts; only you may be able to\n"
     "read it (default: serve.key in the directory of --store, made there; needed with --remote)",
     TOOL_WORD(serve, store.secret_file)},
    {"--min-tokens", "N", "prompts with fewer tokens are not kept (default: 256)",
     TOOL_NUMBER(serve, min_tokens, 64, 1u << 30)},
    {"--log", NULL, "print a line for each request on stderr", TOOL_FLAG(serve, log)},
};

static const tool_command command = {
    .name = "serve",
    .usage = "[OPTIONS] [--] llama-server [ARGUMENTS]",
    .about =
        "Starts an unmodified llama-server behind this program, which listens in its place: the same address, the same\n"
        "interface. Prompts are kept in a store, in pages of 64 tokens: what was computed once, before a restart or on\n"
        "another server that shares the store, is restored instead of computed again.\n\n"
        "Flags with which the rows of a slot depend on more than its tokens are refused: --context-shift, --cache-reuse,\n"
        "--lora and others. Of models with sliding windows or recurrent layers, states at the ends of prompts are kept; a line at\n"
        "the start says of which models nothing is.",
    .examples =
        "  quire serve -- llama-server -m model.gguf -c 32768 --port 8080\n"
        "  quire serve --kv balanced --store /srv/pages --store-size 200G -- llama-server -m model.gguf -c 131072\n"
        "  quire serve --remote cache:6379 --secret-file tenant.key -- llama-server -m model.gguf\n",
    .exit_codes = "that of llama-server; before it starts 1 failed or refused, 2 the command line is wrong",
    .set_rest = set_rest,
};

/* ------------------------------------------------------------------- places */

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s;
    (void)kind;
    (void)at;
    return remove(path);
}

static void remove_folder(const char *path)
{
    if (*path) nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The lock of a folder is held as long as its process lives. */
static int lock_folder(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/lock", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Folders of processes that were killed. */
static void remove_old_folders(const char *base)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/quire-serve.??????", base);
    if (glob(pattern, GLOB_NOSORT, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat there;
        if (lstat(found.gl_pathv[i], &there) || !S_ISDIR(there.st_mode) || there.st_uid != geteuid())
            continue;
        int fd = lock_folder(found.gl_pathv[i]);
        if (fd < 0) continue;
        remove_folder(found.gl_pathv[i]);
        close(fd);
    }
    globfree(&found);
}

/* Slot files lie in memory, and nobody else can read them. */
static int make_folder(serve *s)
{
    struct stat there;
    const char *base = !stat("/dev/shm", &there) && S_ISDIR(there.st_mode) && !access("/dev/shm", W_OK)
                           ? "/dev/shm"
                           : "/tmp";
    remove_old_folders(base);
    snprintf(s->folder, sizeof s->folder, "%s/quire-serve.XXXXXX", base);
    if (!mkdtemp(s->folder)) {
        *s->folder = 0;
        return tool_failed("serve", "no folder can be made in %s: %s", base, strerror(errno));
    }
    if (lock_folder(s->folder) < 0)
        return tool_failed("serve", "%s cannot be locked: %s", s->folder, strerror(errno));
    snprintf(s->socket, sizeof s->socket, "%s/llama.sock", s->folder);
    return TOOL_OK;
}

static bool make_directories(const char *path)
{
    char part[PLACE_SIZE];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return false;
    }
    return !mkdir(part, 0700) || errno == EEXIST;
}

static int make_secret(serve *s)
{
    uint8_t secret[32];
    snprintf(s->secret_file, sizeof s->secret_file, "%s/serve.key", s->store.directory);
    s->store.secret_file = s->secret_file;
    if (!access(s->secret_file, F_OK)) return TOOL_OK;
    int fd = getrandom(secret, sizeof secret, 0) == (ssize_t)sizeof secret
                 ? open(s->secret_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                 : -1;
    bool good = fd >= 0 && write(fd, secret, sizeof secret) == (ssize_t)sizeof secret;
    if (fd >= 0 && close(fd)) good = false;
    if (good || errno == EEXIST) return TOOL_OK;
    return tool_failed("serve", "%s: %s", s->secret_file, strerror(errno));
}

static int find_store(serve *s)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (s->store.directory && !strcmp(s->store.directory, "none")) {
        s->store.directory = NULL;
    } else if (!s->store.directory) {
        if (cache && *cache)
            snprintf(s->directory, sizeof s->directory, "%s/quire/pages", cache);
        else
            snprintf(s->directory, sizeof s->directory, "%s/.cache/quire/pages",
                     home && *home ? home : "/tmp");
        s->store.directory = s->directory;
    }
    if (s->store.remote.host && !s->store.secret_file)
        return tool_usage("serve",
                          "give --secret-file FILE with --remote: servers that share prompts share a secret");
    if (!s->store.directory) return TOOL_OK;
    if (!make_directories(s->store.directory))
        return tool_failed("serve", "%s: %s", s->store.directory, strerror(errno));
    struct statvfs room;
    char slabs[PLACE_SIZE + 16];
    snprintf(slabs, sizeof slabs, "%s/index", s->store.directory);
    if (!s->store.cap_bytes && access(slabs, F_OK) && !statvfs(s->store.directory, &room)) {
        uint64_t tenth = (uint64_t)room.f_bavail * room.f_frsize / 10, usual = UINT64_C(20) << 30;
        s->store.cap_bytes = tenth < usual ? tenth : usual;
    }
    return s->store.secret_file ? TOOL_OK : make_secret(s);
}

static int open_store(serve *s)
{
    int code = find_store(s);
    if (code || (!s->store.directory && !s->store.remote.host)) return code;
    s->store.model = s->flags.model;
    s->store.rope = *s->flags.rope ? s->flags.rope : NULL;
    if (!s->store.model)
        return tool_failed("serve",
                           "give -m FILE to llama-server: the model's digest is a part of every key");
    code = store_identity(&s->store, &s->identity);
    return code ? code : store_open(&s->store, &s->open_store);
}

/* ----------------------------------------------------------------- the server */

/* What the rows of a slot are, in words that do not change with the meaning of a preset. */
static int name_policy(serve *s)
{
    char why[512] = "";
    model_plan plan;
    quire_profile *profile = NULL;
    const char *policy = s->kv                                       ? s->kv
                         : getenv("QUIRE_KV") && *getenv("QUIRE_KV") ? getenv("QUIRE_KV")
                                                                     : "safe";
    s->with_device = strcmp(policy, "none") != 0;
    snprintf(s->kv_name, sizeof s->kv_name, "stock");
    if (!s->with_device || !strcmp(policy, "declared")) return TOOL_OK;
    if (s->profile || strstr(policy, "c:"))
        return tool_failed("serve", "policies with a profile cannot be used with quire serve yet");
    if (model_plan_create(&plan, s->has_model ? &s->model : NULL, policy, profile, why, sizeof why))
        return tool_failed("serve", "the policy %s cannot be used: %s", policy, why);
    snprintf(s->kv_name, sizeof s->kv_name, "%s", quire_plan_policy(plan.plan));
    model_plan_destroy(&plan);
    s->kv = s->kv_name;
    return TOOL_OK;
}

static int read_flags(serve *s)
{
    char message[512];
    host_arguments says;
    host_arguments_read(&says, s->argc, s->argv);
    s->has_model = says.model && model_open(&s->model, says.model, message, sizeof message);
    int code = name_policy(s);
    if (code) return code;
    const serve_place place = {s->socket, s->folder, s->with_device, s->has_model ? s->model.context : 0};
    const char *wrong = flags_read(&s->flags, s->argc, s->argv, &place, message, sizeof message);
    if (wrong) return tool_failed("serve", "%s", wrong);
    if (s->flags.api_key)
        snprintf(s->authorization, sizeof s->authorization, "Bearer %.*s",
                 (int)strcspn(s->flags.api_key, ","), s->flags.api_key);
    return TOOL_OK;
}

/* quire run, which becomes the server. */
static char **make_line(serve *s)
{
    static char run[] = "run", kv[] = "--kv", dashes[] = "--";
    char **line = (char **)calloc((size_t)s->flags.argc + 6, sizeof *line);
    ssize_t n = readlink("/proc/self/exe", s->program, sizeof s->program - 1);
    int at = 0;
    if (!line || n <= 0) {
        free(line);
        return NULL;
    }
    s->program[n] = 0;
    if (s->with_device) {
        line[at++] = s->program;
        line[at++] = run;
        if (s->kv) {
            line[at++] = kv;
            line[at++] = (char *)(size_t)s->kv;
        }
        line[at++] = dashes;
    } else if (place_program(s->program, NULL, s->flags.argv[0])) {
        line[at++] = s->program;
    } else {
        line[at++] = s->flags.argv[0];
    }
    for (int i = s->with_device ? 0 : 1; i < s->flags.argc; i++) line[at++] = s->flags.argv[i];
    return line;
}

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

typedef struct waiter {
    sidecar *sidecar;
    pthread_t main;
} waiter;

static void engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why)
{
    waiter *w = (waiter *)ctx;
    sidecar_engine_changed(w->sidecar, state, generation, why);
    if (state == ENGINE_GONE) pthread_kill(w->main, SIGTERM);
}

static uint32_t longest_window(const serve *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0; s->has_model && i < s->model.n_layers; i++)
        if (s->model.has_kv[i] && s->model.layers[i].window > most) most = s->model.layers[i].window;
    return most;
}

static int run(serve *s)
{
    char message[512];
    sigset_t ends;
    int which, code = TOOL_FAILED;
    const upstream to = {.socket = s->socket, .host = "localhost"};
    const sidecar_options about = {.to = to,
                                   .api_prefix = s->flags.prefix,
                                   .prefix = {.store = s->open_store,
                                              .identity = &s->identity,
                                              .kv = s->kv_name,
                                              .to = to,
                                              .folder = s->folder,
                                              .authorization = *s->authorization ? s->authorization : NULL,
                                              .n_slots = s->flags.n_slots,
                                              .timeout_ms = 2000,
                                              .window = longest_window(s),
                                              .swa_full = s->flags.swa_full,
                                              .chunked = s->has_model && !strcmp(s->model.arch, "llama4")},
                                   .n_slots = s->flags.n_slots,
                                   .min_tokens = s->min_tokens ? s->min_tokens : 256,
                                   .restore_least = s->restore_least ? s->restore_least : 128,
                                   .log_requests = s->log};
    waiter w = {.sidecar = sidecar_create(&about), .main = pthread_self()};
    char **line = make_line(s);
    if (!w.sidecar || !line) return tool_failed("serve", "out of memory");
    const front_options face = {.host = s->flags.host,
                                .port = s->flags.port,
                                .most_connections = MOST_CONNECTIONS,
                                .idle_seconds = IDLE_SECONDS,
                                .most_body = MOST_BODY,
                                .handle = sidecar_handle,
                                .ctx = w.sidecar};
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    front *f = front_start(&face, message, sizeof message);
    const engine_options server = {.argv = line, .to = to, .changed = engine_changed, .ctx = &w};
    engine *e = f ? engine_start(&server) : NULL;
    if (!f) tool_failed("serve", "%s", message);
    if (e) {
        fprintf(stderr, "quire serve: listening at %s, port %u\n", s->flags.host, front_port(f));
        sigwait(&ends, &which);
        front_quiesce(f);
        code = engine_stop(e);
    }
    front_stop(f);
    sidecar_destroy(w.sidecar);
    free(line);
    return code;
}

int cmd_serve(int argc, char **argv)
{
    static serve s; /* large */
    sigset_t ends;
    int code = store_parse(&s.store, STORE_REMOTE | STORE_OPTIONAL, &command, options,
                           sizeof options / sizeof *options, argc, argv);
    if (code >= 0) return code;
    if (s.argc < 1) return tool_usage("serve", "it needs a llama-server; quire serve --help explains it");
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before any thread: the main one waits for them */
    raise_file_limit();
    if (!upstream_init()) return tool_failed("serve", "libcurl cannot be used");
    code = make_folder(&s);
    if (!code) code = read_flags(&s);
    if (!code) code = open_store(&s);
    if (!code) code = run(&s);
    if (s.open_store) quire_store_close(s.open_store);
    flags_free(&s.flags);
    remove_folder(s.folder);
    upstream_end();
    return code;
}
