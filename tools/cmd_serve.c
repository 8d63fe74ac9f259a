/* SPDX-License-Identifier: MIT */
/* quire serve: a llama-server behind this program, which keeps prompts that were computed once. */
#define _GNU_SOURCE
#include "commands.h"

#include "common/place.h"
#include "llama/host_arguments.h"
#include "llama/host_config.h"
#include "serve/clock.h"
#include "serve/flags.h"
#include "serve/folder.h"
#include "serve/gateway.h"
#include "serve/limits.h"
#include "serve/replicas.h"
#include "serve/sidecar.h"
#include "serve/tiers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOT_TIMEOUT_MS = 60000, LOAD_TIMEOUT_MS = 2000 };
/* At the end: for slots that are not saved yet, for what the store has not written yet, for requests that come to a gateway meanwhile. */
enum { SAVE_TIMEOUT_MS = 10000, FLUSH_TIMEOUT_MS = 5000, LAST_REQUEST_MS = 500 };
#define MOST_BODY (100u << 20) /* as llama-server's own limit */

typedef struct serve {
    store_options store; /* first: the options of the store are parsed into it */
    const char *kv, *tenants_file;
    uint32_t min_tokens, restore_least, client_seconds, load_ms, drain_seconds;
    bool log;
    int argc; /* of the server */
    char **argv;
    const char *replicas[REPLICAS_MOST], *host; /* of a gateway, which has no server */
    size_t n_replicas;
    uint32_t port, most_connections;

    model model;
    bool has_model, with_device;
    char kv_name[512]; /* what the rows are, for the keys of pages */
    char folder[64], socket[80], program[PLACE_SIZE];
    char authorization[600];
    host_config config;
    watched *files; /* that rows depend on */
    serve_flags flags;
    tiers tiers;
    quire_store *open_store;
    quire_identity identity;
    tenants *tenants;
    uint64_t slot_memory;
    budget *memory;
} serve;

static void set_rest(void *ctx, int argc, char **argv)
{
    serve *s = (serve *)ctx;
    s->argc = argc;
    s->argv = argv;
}

static const char *set_replica(void *ctx, const char *value)
{
    serve *s = (serve *)ctx;
    const char *wrong = replica_wrong(value);
    if (wrong) return wrong;
    for (size_t i = 0; i < s->n_replicas; i++)
        if (!strcasecmp(s->replicas[i], value)) return "each replica once";
    if (s->n_replicas == REPLICAS_MOST) return "at most 256 times";
    s->replicas[s->n_replicas++] = value;
    return NULL;
}

static const tool_option options[] = {
    {"--kv", "POLICY",
     "how the cache is kept, as of quire run (default: safe); none: as llama-server keeps it by itself,\n"
     "without Quire's device",
     TOOL_WORD(serve, kv)},
    {"--store", "DIRECTORY", "where prompts are kept (default: ~/.cache/quire/pages); none: nowhere on disk",
     TOOL_WORD(serve, store.directory)},
    {"--store-size", "BYTES",
     "limit of its files, such as 200G (default: that of the directory; of a new one 20G, at most a\n"
     "tenth of the space that is free)",
     TOOL_BYTES(serve, store.cap_bytes, TIERS_LEAST_BYTES, STORE_MAX_BYTES), .wish = "a size of 16M or more"},
    {"--secret-file", "FILE",
     "32 bytes or 64 hex digits, the same on all servers that share prompts; only you may be able to\n"
     "read it (default: serve.key in the directory of --store, made there; needed with --remote)",
     TOOL_WORD(serve, store.secret_file)},
    {"--seal-disk", NULL,
     "encrypt pages on disk with a key made from the secret of --secret-file (always so with --tenants;\n"
     "pages in the remote tier are always encrypted)",
     TOOL_FLAG(serve, store.seal_disk)},
    {"--tenants", "FILE",
     "clients by their API keys, each with prompts of its own: lines of the SHA-256 of a key in hex, the file\n"
     "of the tenant's secret and a name; SIGHUP reads it again (default: all clients share their prompts)",
     TOOL_WORD(serve, tenants_file)},
    {"--min-tokens", "N", "prompts with fewer tokens are not kept (default: 256)",
     TOOL_NUMBER(serve, min_tokens, 64, 1u << 30)},
    {"--slot-memory", "BYTES",
     "what slot files and pages that are restored or saved may take of memory at a time, such as 8G; what does\n"
     "not fit waits or is computed (default: three quarters of what is free at that time)",
     TOOL_BYTES(serve, slot_memory, 1, STORE_MAX_BYTES)},
    {"--client-seconds", "N",
     "what a client may take for the headers of a request; twice that for its body, and a second more for\n"
     "each KiB, of which no more than that is ever left; four times N for each piece of the answer, and\n"
     "between requests (default: 15)",
     TOOL_NUMBER(serve, client_seconds, 1, 3600)},
    {"--timeout", "MS",
     "how long the store may take to look a prompt up, and how long to load its pages; what is not there\n"
     "by then is computed (default: 2000)",
     TOOL_NUMBER(serve, load_ms, 1, 3600000), .wish = "a number of milliseconds from 1 to 3600000"},
    {"--log", NULL, "print a line for each request on stderr", TOOL_FLAG(serve, log)},
    {"--replica", "HOST:PORT",
     "instead of a llama-server, several times: be a gateway before these quire serve; a conversation\n"
     "stays with one of them while that is not overloaded",
     .set = set_replica},
    {"--drain-seconds", "N",
     "how long a gateway that is asked to end waits for the requests that it answers (default: 300); a second\n"
     "signal ends it at once",
     TOOL_NUMBER(serve, drain_seconds, 1, 86400)},
    {"--host", "ADDRESS", "where a gateway listens (default: 127.0.0.1)", TOOL_WORD(serve, host)},
    {"--port", "PORT", "and its port (default: 8080)", TOOL_NUMBER(serve, port, 1, 65535)},
};

static const tool_command command = {
    .name = "serve",
    .usage = "[OPTIONS] [--] llama-server [ARGUMENTS] | --replica HOST:PORT ...",
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
        "  quire serve --remote cache:6379 --secret-file tenant.key -- llama-server -m model.gguf\n"
        "  quire serve --replica a:8080 --replica b:8080 --replica c:8080 --host 0.0.0.0 --port 8080\n",
    .exit_codes =
        "that of llama-server; before it starts 1 failed, 2 the command line, a flag of llama-server or the file of --tenants is refused",
    .set_rest = set_rest,
};

/* ---------------------------------------------------------------- the store */

/* Of nobody: with tenants nothing is kept under it. */
static int invent_secret(serve *s)
{
    s->store.has_secret =
        getrandom(s->store.secret, sizeof s->store.secret, 0) == (ssize_t)sizeof s->store.secret;
    return s->store.has_secret ? TOOL_OK : tool_failed("serve", "no random bytes: %s", strerror(errno));
}

/* As a wrong command line it stays wrong, however often the server is started. */
static int refuse(const char *sentence)
{
    (void)tool_failed("serve", "%s", sentence);
    return TOOL_USAGE;
}

static int open_tenants(serve *s)
{
    char message[512];
    if (!s->tenants_file) return TOOL_OK;
    s->tenants = tenants_open(s->tenants_file, message, sizeof message);
    s->store.seal_disk = true;
    if (s->tenants) return invent_secret(s);
    return refuse(message);
}

/* What operators should know of the store. */
static void tell(void *ctx, quire_log_level level, const char *sentence)
{
    bool is_node = level == QUIRE_LOG_WARNING && !strncmp(sentence, "The remote node ", 16);
    (void)ctx;
    fprintf(stderr, "quire serve: the store: %s%s\n", sentence,
            is_node ? " quire store doctor --remote says more." : "");
}

/* The same tokens have other rows with the other set of factors. */
static int add_rope_factors(serve *s)
{
    const char *factors = s->has_model ? model_rope_factors(&s->model, s->flags.context) : "";
    char *rope = s->flags.rope;
    size_t n = strlen(rope);
    if (!*factors) return TOOL_OK;
    int added = snprintf(rope + n, FLAGS_TEXT - n, "%s%s", n ? " " : "", factors);
    return added < (int)(FLAGS_TEXT - n) ? TOOL_OK : tool_failed("serve", "there are too many RoPE flags");
}

/* Before the digest is taken: the server may load the files much later, and load them again. */
static bool watch_model(serve *s)
{
    char part[PLACE_SIZE];
    bool good = true;
    for (unsigned i = 0, n = store_model_parts(s->store.model); good && i < n; i++)
        if (store_model_part(s->store.model, i, part, sizeof part)) good = watched_add(s->files, part);
    return good;
}

static int open_store(serve *s)
{
    static const quire_log log = {.size = sizeof log, .write = tell};
    s->tiers = (tiers){.o = &s->store, .has_tenants = s->tenants};
    s->store.log = &log;
    int code = tiers_find(&s->tiers);
    if (code || !tiers_exist(&s->tiers)) return code;
    code = add_rope_factors(s);
    if (code) return code;
    s->store.model = s->flags.model;
    s->store.rope = *s->flags.rope ? s->flags.rope : NULL;
    if (!s->store.model)
        return tool_failed("serve",
                           "give -m FILE to llama-server: the model's digest is a part of every key");
    if (!watch_model(s)) return tool_failed("serve", "out of memory");
    code = store_identity(&s->store, &s->identity);
    return code ? code : tiers_open(&s->tiers, &s->open_store);
}

/* ----------------------------------------------------------------- the server */

/* What the rows of a slot are, in words that do not change with the meaning of a preset. */
static int name_policy(serve *s)
{
    char why[512] = "";
    model_plan plan;
    const char *policy = s->kv                                       ? s->kv
                         : getenv("QUIRE_KV") && *getenv("QUIRE_KV") ? getenv("QUIRE_KV")
                                                                     : "safe";
    s->with_device = strcmp(policy, "none") != 0;
    snprintf(s->kv_name, sizeof s->kv_name, "stock");
    if (!s->with_device || !strcmp(policy, "declared")) return TOOL_OK;
    if (strstr(policy, "c:"))
        return tool_failed("serve", "policies with a profile cannot be used with quire serve yet");
    if (model_plan_create(&plan, s->has_model ? &s->model : NULL, policy, NULL, why, sizeof why))
        return tool_usage("serve", "the policy %s cannot be used: %s", policy, why);
    snprintf(s->kv_name, sizeof s->kv_name, "%s", quire_plan_policy(plan.plan));
    model_plan_destroy(&plan);
    s->kv = s->kv_name;
    return TOOL_OK;
}

/* A key for the server's own interface: the first that it takes, which is the first of a list, or of a file's lines that are no comment. */
static int read_api_key(serve *s)
{
    char *line = NULL;
    size_t size = 0;
    const char *key = s->flags.api_key ? s->flags.api_key + strspn(s->flags.api_key, ",") : "";
    int n = (int)strcspn(key, ",\r\n");
    FILE *f = n || !s->flags.api_key_file ? NULL : fopen(s->flags.api_key_file, "re");
    while (f && !n && getline(&line, &size, f) > 0) {
        key = line;
        n = *line == '#' ? 0 : (int)strcspn(line, "\r\n");
    }
    if (n) snprintf(s->authorization, sizeof s->authorization, "Bearer %.*s", n, key);
    if (f) fclose(f);
    free(line);
    return TOOL_OK;
}

static int read_flags(serve *s)
{
    char message[PLACE_SIZE + 512];
    host_arguments says;
    const host_config_place here = host_config_here();
    const char *wrong = host_config_read(&s->config, &here, message, sizeof message);
    for (int i = 0; !wrong && i < HOST_CONFIG_FILES; i++)
        if (*s->config.path[i] && !watched_add(s->files, s->config.path[i])) wrong = "out of memory";
    host_config_free(&s->config); /* read once to know where it is; what counts is read while it is watched */
    if (!wrong) wrong = host_config_read(&s->config, &here, message, sizeof message);
    if (wrong) return refuse(wrong);
    host_arguments_read(&says, s->argc, s->argv);
    if (!says.model) says.model = host_config_value(&s->config, "-m", "--model", "LLAMA_ARG_MODEL");
    s->has_model = says.model && model_open(&s->model, says.model, message, sizeof message);
    int code = name_policy(s);
    if (code) return code;
    const serve_place place = {.socket = s->socket,
                               .folder = s->folder,
                               .has_tenants = s->tenants,
                               .with_device = s->with_device,
                               .config = &s->config,
                               .trained = s->has_model ? s->model.context : 0};
    wrong = flags_read(&s->flags, s->argc, s->argv, &place, message, sizeof message);
    if (wrong) return refuse(wrong);
    return read_api_key(s);
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

static void set_signals(const serve *s, sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    if (s->tenants_file)
        sigaddset(set, SIGHUP);
    else if (!isatty(STDIN_FILENO)) /* nothing to read again; a terminal that was closed ends the program */
        signal(SIGHUP, SIG_IGN);
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
    const upstream to = {.socket = s->socket, .host = "localhost", .api_prefix = s->flags.prefix};
    const sidecar_options about = {.to = to,
                                   .prefix = {.store = s->open_store,
                                              .identity = &s->identity,
                                              .kv = s->kv_name,
                                              .to = to,
                                              .folder = s->folder,
                                              .folder_is_memory = folder_is_memory(s->folder),
                                              .memory = s->memory,
                                              .authorization = *s->authorization ? s->authorization : NULL,
                                              .n_slots = s->flags.n_slots,
                                              .has_disk = s->store.directory,
                                              .timeout_ms = s->load_ms ? s->load_ms : LOAD_TIMEOUT_MS,
                                              .slot_timeout_ms = SLOT_TIMEOUT_MS,
                                              .window = longest_window(s),
                                              .swa_full = s->flags.swa_full,
                                              .chunked = s->has_model && !strcmp(s->model.arch, "llama4")},
                                   .tenants = s->tenants,
                                   .files = s->files,
                                   .has_lost_disk = s->tiers.has_lost_disk,
                                   .n_slots = s->flags.n_slots,
                                   .min_tokens = s->min_tokens ? s->min_tokens : 256,
                                   .restore_least = s->restore_least ? s->restore_least : 128,
                                   .log_requests = s->log};
    waiter w = {.sidecar = sidecar_create(&about), .main = pthread_self()};
    char **line = make_line(s);
    if (!w.sidecar || !line) return tool_failed("serve", "out of memory");
    const front_options face = {.host = s->flags.host,
                                .port = s->flags.port,
                                .most_connections = s->most_connections,
                                .header_seconds = s->client_seconds,
                                .most_body = MOST_BODY,
                                .handle = sidecar_handle,
                                .ctx = w.sidecar};
    set_signals(s, &ends);
    front *f = front_start(&face, message, sizeof message);
    const engine_options server = {.argv = line, .to = to, .changed = engine_changed, .ctx = &w};
    engine *e = f ? engine_start(&server) : NULL;
    if (!f) tool_failed("serve", "%s", message);
    if (e) {
        limits_tell(s->most_connections);
        fprintf(stderr, "quire serve: listening at %s, port %u\n", s->flags.host, front_port(f));
        while (!sigwait(&ends, &which) && which == SIGHUP) sidecar_read_tenants(w.sidecar);
        front_quiesce(f);
        sidecar_finish(w.sidecar, SAVE_TIMEOUT_MS);
        code = engine_stop(e);
    }
    front_stop(f);
    /* A slow remote must not hold the end up: what it has not taken by now stays on the disk alone. */
    if (s->open_store && quire_store_flush(s->open_store, FLUSH_TIMEOUT_MS))
        quire_store_stop_remote(s->open_store);
    sidecar_destroy(w.sidecar);
    free(line);
    return code;
}

/* ---------------------------------------------------------------- the gateway */

/*
 * Requests that have begun may come to their end. On a CPU that is minutes: the prompt may be long, or wait behind one whose
 * client has left, because llama-server does not stop in the middle of a batch.
 */
static void drain(front *f, uint32_t seconds, const sigset_t *ends)
{
    static const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    double now = clock_ms(), end = now + 1e3 * seconds,
           quiet = now; /* quiet: since when nothing is answered */
    if (front_is_busy(f))
        fprintf(
            stderr,
            "quire serve: ending when the requests that are being answered have ended, after %u s at most; a "
            "second signal does not wait\n",
            seconds);
    /* A request that a proxy has just sent on a connection that it keeps is not seen yet. */
    while ((now = clock_ms()) < end && now - quiet < LAST_REQUEST_MS) {
        if (sigtimedwait(ends, NULL, &pause) > 0) return;
        if (front_is_busy(f)) quiet = clock_ms();
    }
    if (front_is_busy(f)) fprintf(stderr, "quire serve: requests that have not ended are broken off\n");
}

static int run_gateway(const serve *s, const sigset_t *ends)
{
    char message[512];
    int which;
    const gateway_options about = {s->replicas, s->n_replicas, s->log};
    gateway *g = gateway_create(&about);
    const front_options face = {.host = s->host ? s->host : "127.0.0.1",
                                .port = (uint16_t)(s->port ? s->port : 8080),
                                .most_connections = s->most_connections,
                                .header_seconds = s->client_seconds,
                                .most_body = MOST_BODY,
                                .handle = gateway_handle,
                                .ctx = g};
    if (!g) return tool_failed("serve", "out of memory, or of threads");
    front *f = front_start(&face, message, sizeof message);
    if (f) {
        limits_tell(s->most_connections);
        fprintf(stderr, "quire serve: a gateway at %s, port %u, before %zu replicas\n", face.host,
                front_port(f), s->n_replicas);
        sigwait(ends, &which);
        front_quiesce(f);
        drain(f, s->drain_seconds ? s->drain_seconds : 300, ends);
        front_stop(f);
    }
    gateway_destroy(g);
    return f ? TOOL_OK : tool_failed("serve", "%s", message);
}

/* What a gateway would not do, although its operator asked for it. */
static bool has_option_of_server(const serve *s)
{
    const store_options *o = &s->store;
    return s->kv || s->tenants_file || s->min_tokens || s->slot_memory || s->load_ms || o->directory ||
           o->cap_bytes || o->secret_file || o->seal_disk || o->remote.host;
}

int cmd_serve(int argc, char **argv)
{
    static serve s; /* large */
    sigset_t ends;
    int code = store_parse(&s.store, STORE_REMOTE | STORE_OPTIONAL, &command, options,
                           sizeof options / sizeof *options, argc, argv);
    if (code >= 0) return code;
    if (!s.n_replicas && (s.host || s.port || s.drain_seconds))
        return tool_usage("serve",
                          "--host, --port and --drain-seconds before the server's name are those of a "
                          "gateway (--replica)");
    if (s.n_replicas && s.argc)
        return tool_usage("serve", "give either --replica or a llama-server: a gateway has none of its own");
    if (s.n_replicas && has_option_of_server(&s))
        return tool_usage("serve",
                          "a gateway has only --log, --client-seconds, --drain-seconds, --host and --port: "
                          "tenants, pages and secrets are those of its replicas");
    if (s.argc < 1 && !s.n_replicas)
        return tool_usage("serve", "it needs a llama-server; quire serve --help explains it");
    signal(SIGPIPE, SIG_IGN);
    set_signals(&s, &ends);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before any thread: the main one waits for them */
    s.most_connections = limits_raise_files();
    limits_keep_memory();
    if (!upstream_init()) return tool_failed("serve", "libcurl cannot be used");
    if (s.n_replicas) {
        code = run_gateway(&s, &ends);
        upstream_end();
        return code;
    }
    code = folder_make(s.folder, sizeof s.folder, s.tenants_file || s.store.seal_disk);
    snprintf(s.socket, sizeof s.socket, "%s/llama.sock", s.folder);
    s.files = watched_create();
    s.memory = budget_create(s.slot_memory);
    if (!s.files || !s.memory) code = tool_failed("serve", "out of memory");
    if (!code) code = open_tenants(&s);
    if (!code) code = read_flags(&s);
    if (!code) code = open_store(&s);
    if (!code) code = run(&s);
    if (s.open_store) quire_store_close(s.open_store);
    tenants_close(s.tenants);
    flags_free(&s.flags);
    host_config_free(&s.config);
    watched_destroy(s.files);
    budget_destroy(s.memory);
    folder_remove(s.folder);
    upstream_end();
    return code;
}
