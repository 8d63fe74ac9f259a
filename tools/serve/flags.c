/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/flags.h"

#include "llama/row_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What happens to a flag of the user. */
typedef enum flag_use {
    TAKEN,   /* not passed on: this program does it */
    REFUSED, /* it would break what this program promises */
    SEEN     /* passed on */
} flag_use;

#define OTHER_MODEL "it serves a model whose file is not known here; give the file with -m"

/*
 * Flags of llama-server (llama.cpp 0.5 to 0.7) that matter here, with the variables that stand for them. In a file, flags without a value
 * count whatever the file says, unless they have an opposite; see switches.
 */
static const struct known {
    const char *name, *brief, *variable;
    bool has_value;
    flag_use use;
    const char *why; /* of REFUSED */
} known[] = {
    {"--host", NULL, "LLAMA_ARG_HOST", true, TAKEN, NULL},
    {"--port", NULL, "LLAMA_ARG_PORT", true, TAKEN, NULL},
    {"--parallel", "-np", "LLAMA_ARG_N_PARALLEL", true, TAKEN, NULL},
    {"--ctx-size", "-c", "LLAMA_ARG_CTX_SIZE", true, TAKEN, NULL},
    {"--no-kv-unified", "-no-kvu", NULL, false, TAKEN, NULL},
    {"--slot-prompt-similarity", "-sps", NULL, true, TAKEN, NULL},
    {"--cache-ram", "-cram", "LLAMA_ARG_CACHE_RAM", true, TAKEN, NULL},
    {"--slot-save-path", NULL, NULL, true, REFUSED, "quire serve keeps slot files itself"},
    {"--kv-unified", "-kvu", "LLAMA_ARG_KV_UNIFIED", false, REFUSED,
     "a unified cache clears idle slots whenever a request begins"},
    {"--no-cache-prompt", NULL, NULL, false, REFUSED, "no prefix would ever be reused"},
    {"--ssl-key-file", NULL, "LLAMA_ARG_SSL_KEY_FILE", true, REFUSED,
     "quire serve speaks plain HTTP; put nginx, HAProxy or Caddy before it for TLS"},
    {"--ssl-cert-file", NULL, "LLAMA_ARG_SSL_CERT_FILE", true, REFUSED,
     "quire serve speaks plain HTTP; put nginx, HAProxy or Caddy before it for TLS"},
    {"--models-dir", NULL, "LLAMA_ARG_MODELS_DIR", true, REFUSED,
     "a server with several models cannot be watched; start one server for each model"},
    {"--embedding", "--embeddings", "LLAMA_ARG_EMBEDDINGS", false, REFUSED,
     "embeddings have no prefixes to keep; start llama-server itself"},
    {"--rerank", "--reranking", "LLAMA_ARG_RERANKING", false, REFUSED,
     "reranking has no prefixes to keep; start llama-server itself"},
    {"--model", "-m", "LLAMA_ARG_MODEL", true, SEEN, NULL},
    {"--api-prefix", NULL, "LLAMA_ARG_API_PREFIX", true, SEEN, NULL},
    {"--api-key", NULL, "LLAMA_API_KEY", true, SEEN, NULL},
    {"--api-key-file", NULL, "LLAMA_ARG_API_KEY_FILE", true, SEEN, NULL},
    {"--swa-full", NULL, "LLAMA_ARG_SWA_FULL", false, SEEN, NULL},
    {"--hf-repo", "-hf", "LLAMA_ARG_HF_REPO", true, REFUSED, OTHER_MODEL},
    {"-hfr", NULL, NULL, true, REFUSED, OTHER_MODEL},
    {"--hf-file", "-hff", "LLAMA_ARG_HF_FILE", true, REFUSED, OTHER_MODEL},
    {"--model-url", "-mu", "LLAMA_ARG_MODEL_URL", true, REFUSED, OTHER_MODEL},
    {"--docker-repo", "-dr", "LLAMA_ARG_DOCKER_REPO", true, REFUSED, OTHER_MODEL},
    {"--sleep-idle-seconds", NULL, "LLAMA_ARG_SLEEP_IDLE_SECONDS", true, REFUSED,
     "a server that sleeps has lost its slots, and does not say so"},
};

#define N_KNOWN (sizeof known / sizeof *known)
enum { HOST, PORT, SLOTS, CONTEXT, MODEL = 15, PREFIX, KEY, KEY_FILE, WHOLE_WINDOWS };

static bool is_word(const char *word, const char *name)
{
    if (!name) return false;
    for (size_t i = 0;; i++) {
        if (word[i] == name[i] || (i >= 2 && word[i] == '_' && name[i] == '-')) {
            if (!name[i]) return true;
            continue;
        }
        return false;
    }
}

static int find_known(const char *word)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (is_word(word, known[i].name) || is_word(word, known[i].brief)) return (int)i;
    return -1;
}

/* --gpt-oss-20b-default and others, each a model that is fetched. --spec-default is none of them. */
static bool is_preset(const char *word)
{
    static const char end[] = "-default";
    size_t n = strlen(word), k = sizeof end - 1;
    if (n <= k || strncmp(word, "--", 2) != 0 || is_word(word, "--spec-default")) return false;
    for (size_t i = 0; i < k; i++)
        if (word[n - k + i] != end[i] && !(word[n - k + i] == '_' && end[i] == '-')) return false;
    return true;
}

/* Flags of which one says the opposite of the other, and which of both must not be. */
static const struct {
    const char *names[2], *opposites[2], *variable, *why;
    bool wanted;
} switches[] = {
    {{"--kv-unified", "-kvu"},
     {"--no-kv-unified", "-no-kvu"},
     "LLAMA_ARG_KV_UNIFIED",
     "a unified cache clears idle slots whenever a request begins",
     false},
    {{"--cache-prompt", NULL},
     {"--no-cache-prompt", NULL},
     "LLAMA_ARG_CACHE_PROMPT",
     "no prefix would ever be reused",
     true},
};

typedef struct reading {
    serve_flags *out;
    const char *values[N_KNOWN]; /* NULL: not given; "" of a switch that is */
    const char *in_files[N_KNOWN];
    char *message;
    int size;
} reading;

static const char *refuse(reading *r, const char *word, const char *why)
{
    snprintf(r->message, (size_t)r->size, "%s cannot be used with quire serve: %s", word, why);
    return r->message;
}

static bool push(serve_flags *f, const char *word)
{
    char *copy = strdup(word), **more = (char **)realloc(f->argv, sizeof *more * ((size_t)f->argc + 2));
    if (more) f->argv = more;
    if (!copy || !more) {
        free(copy);
        return false;
    }
    f->argv[f->argc++] = copy;
    f->argv[f->argc] = NULL;
    return true;
}

static const char *read_rows(reading *r, const char *word, const char *value)
{
    const row_flag *flag = row_flag_of_word(word);
    if (!flag) return NULL;
    if (flag->kind == ROW_FLAG_NUMBER && row_flag_is_off(value)) return NULL;
    if (flag->kind == ROW_FLAG_ROPE) {
        size_t n = strlen(r->out->rope);
        int added = snprintf(r->out->rope + n, sizeof r->out->rope - n, "%s%s=%s", n ? " " : "", word,
                             value ? value : "");
        return added < (int)(sizeof r->out->rope - n) ? NULL
                                                      : refuse(r, word, "there are too many RoPE flags");
    }
    if (flag->kind == ROW_FLAG_OPEN) return NULL;
    return refuse(r, word,
                  flag->kind == ROW_FLAG_ADAPTER ? "rows of a LoRA adapter are not kept apart yet"
                                                 : flag->what);
}

static const char *read_words(reading *r, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int at = find_known(argv[i]);
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        const char *wrong = read_rows(r, argv[i], value);
        if (wrong) return wrong;
        if (is_preset(argv[i])) return refuse(r, argv[i], OTHER_MODEL);
        if (at < 0) {
            if (!push(r->out, argv[i])) return "out of memory";
            continue;
        }
        const struct known *k = &known[at];
        if (k->use == REFUSED) return refuse(r, argv[i], k->why);
        if (k->has_value && !value) return refuse(r, argv[i], "its value is missing");
        r->values[at] = k->has_value ? value : "";
        if (k->use == SEEN && (!push(r->out, argv[i]) || (k->has_value && !push(r->out, value))))
            return "out of memory";
        i += k->has_value;
    }
    return NULL;
}

/* A switch may say "no"; of the flags with a value only one has a value that does. */
static bool says_no_value(const struct known *k, const char *value)
{
    return k->has_value ? !strcmp(value, "-1") : row_flag_is_off(value);
}

static const char *read_variables(reading *r)
{
    extern char **environ;
    if (getenv("AIP_MODE")) return refuse(r, "AIP_MODE", "its predict route reaches slots past this program");
    for (size_t i = 0; i < N_KNOWN; i++) {
        const char *value = known[i].variable ? getenv(known[i].variable) : NULL;
        if (!value || !*value) continue;
        if (known[i].use == REFUSED && !says_no_value(&known[i], value))
            return refuse(r, known[i].variable, known[i].why);
        if (!r->values[i] && known[i].use != REFUSED) r->values[i] = value;
        if (known[i].use == TAKEN) unsetenv(known[i].variable);
    }
    for (char **v = environ; v && *v; v++) {
        const char *equals = strchr(*v, '=');
        const row_flag *flag = equals ? row_flag_of_variable(*v, (int)(equals - *v)) : NULL;
        if (!flag || row_flag_is_off(equals + 1) || flag->kind == ROW_FLAG_OPEN) continue;
        if (flag->kind != ROW_FLAG_ROPE) return refuse(r, *v, flag->what);
        size_t n = strlen(r->out->rope);
        if (snprintf(r->out->rope + n, sizeof r->out->rope - n, "%s%s", n ? " " : "", *v) >=
            (int)(sizeof r->out->rope - n))
            return refuse(r, *v, "there are too many RoPE settings");
    }
    return NULL;
}

/* -------------------------------------------------------------------- files */

static const char *refuse_key(reading *r, const host_config_entry *e, const char *why)
{
    snprintf(r->message, (size_t)r->size, "%s in %s cannot be used with quire serve: %s", e->key, e->file,
             why);
    return r->message;
}

/* false: the key is none of them. */
static bool read_switch(reading *r, const host_config_entry *e, const char **wrong)
{
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        bool is_it = host_config_is_flag(e, switches[i].names[0]) ||
                     host_config_is_flag(e, switches[i].names[1]) ||
                     host_config_is_variable(e, switches[i].variable);
        bool is_opposite = host_config_is_flag(e, switches[i].opposites[0]) ||
                           host_config_is_flag(e, switches[i].opposites[1]);
        if (!is_it && !is_opposite) continue;
        bool is_on = host_config_says_yes(e->value) != is_opposite;
        *wrong = is_on == switches[i].wanted ? NULL : refuse_key(r, e, switches[i].why);
        return true;
    }
    return false;
}

static const char *read_row_key(reading *r, const host_config_entry *e, const row_flag *flag)
{
    size_t n = strlen(r->out->rope), room = sizeof r->out->rope - n;
    if (flag->kind == ROW_FLAG_ADAPTER)
        return refuse_key(r, e, "rows of a LoRA adapter are not kept apart yet");
    if (flag->kind != ROW_FLAG_ROPE) return refuse_key(r, e, flag->what);
    /* What flags say of the same stands there too, and is what counts. */
    int added = snprintf(r->out->rope + n, room, "%sconfig.ini:%s=%s", n ? " " : "", e->key, e->value);
    return added < (int)room ? NULL : refuse_key(r, e, "there are too many RoPE settings");
}

static const char *read_key(reading *r, const host_config_entry *e)
{
    char word[256];
    const char *wrong = NULL;
    bool says_no = false;
    const row_flag *flag = host_config_row_flag(e, &says_no);
    if (flag) return says_no ? NULL : read_row_key(r, e, flag);
    if (read_switch(r, e, &wrong)) return wrong;
    snprintf(word, sizeof word, "--%s", e->key);
    if (is_preset(word)) return refuse_key(r, e, OTHER_MODEL);
    int at = find_known(word), brief = find_known(word + 1);
    bool is_exact =
        at >= 0 && (host_config_is_flag(e, known[at].name) || host_config_is_flag(e, known[at].brief));
    if (at < 0) at = brief;
    for (size_t i = 0; at < 0 && i < N_KNOWN; i++)
        if (host_config_is_variable(e, known[i].variable)) at = (int)i;
    if (at < 0) return NULL;
    const struct known *k = &known[at];
    if (k->use == REFUSED)
        return k->has_value && says_no_value(k, e->value) ? NULL : refuse_key(r, e, k->why);
    if (!is_exact && at != brief && !host_config_is_variable(e, k->variable))
        return refuse_key(r, e, "llama.cpp writes it with dashes");
    r->in_files[at] = k->has_value ? e->value : "";
    return NULL;
}

static const char *read_files(reading *r, const host_config *config)
{
    const char *wrong = NULL;
    for (size_t i = 0; config && !wrong && i < config->n; i++) wrong = read_key(r, &config->entries[i]);
    for (size_t i = 0; !wrong && i < N_KNOWN; i++) {
        if (r->values[i] || !r->in_files[i]) continue;
        r->values[i] = r->in_files[i];
        /* quire run, which starts the server, looks for the model and its windows on the command line. */
        if ((i == MODEL && !(push(r->out, "-m") && push(r->out, r->values[i]))) ||
            (i == WHOLE_WINDOWS && !push(r->out, "--swa-full")))
            wrong = "out of memory";
    }
    return wrong;
}

static bool number(const char *text, long least, long most, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return *text && !*end && *out >= least && *out <= most;
}

/* The flags that watching slots needs, each explained in docs/serve.md. */
static const char *add_own(reading *r, const serve_place *place)
{
    serve_flags *f = r->out;
    char slots[16], context[24];
    long n = 0, c = 0, port = 8080;
    if (r->values[PORT] && !number(r->values[PORT], 0, 65535, &port))
        return refuse(r, "--port", "it needs a number up to 65535");
    if (r->values[SLOTS] && !number(r->values[SLOTS], -1, 256, &n))
        return refuse(r, "-np", "it needs a number up to 256");
    if (r->values[CONTEXT] && !number(r->values[CONTEXT], 0, INT32_MAX, &c))
        return refuse(r, "-c", "it needs a number");
    f->n_slots = n > 0 ? (uint32_t)n : place->with_device ? 4 : 1;
    f->port = (uint16_t)port;
    f->host = r->values[HOST] ? r->values[HOST] : "127.0.0.1";
    f->model = r->values[MODEL];
    f->prefix = r->values[PREFIX] ? r->values[PREFIX] : "";
    f->api_key = r->values[KEY];
    f->api_key_file = r->values[KEY_FILE];
    f->swa_full = r->values[WHOLE_WINDOWS];
    snprintf(slots, sizeof slots, "%u", f->n_slots);
    bool good = push(f, "--host") && push(f, place->socket) && push(f, "-np") && push(f, slots) &&
                push(f, "--no-kv-unified") && push(f, "-sps") && push(f, "0.000001") &&
                push(f, "--cache-ram") && push(f, "0") && push(f, "--slot-save-path") &&
                push(f, place->folder);
    if (place->has_tenants) good = good && push(f, "--no-cache-prompt");
    if (!c) c = (long)place->trained;
    if (!c && r->in_files[CONTEXT]) good = good && push(f, "-c") && push(f, "0"); /* not what the file says */
    if (c) { /* -c is divided among the slots, and one request may take all of the user's */
        if ((uint64_t)c * f->n_slots > INT32_MAX)
            return refuse(r, "-c", "that times the number of slots is too large");
        snprintf(context, sizeof context, "%llu", (unsigned long long)c * f->n_slots);
        good = good && push(f, "-c") && push(f, context);
        f->context = ((uint64_t)c + 255) / 256 * 256;
    }
    return good ? NULL : "out of memory";
}

const char *flags_read(serve_flags *out, int argc, char **argv, const serve_place *place, char *message,
                       int size)
{
    reading r = {.out = out, .message = message, .size = size};
    *out = (serve_flags){0};
    const char *wrong = push(out, argv[0]) ? read_words(&r, argc, argv) : "out of memory";
    if (!wrong) wrong = read_variables(&r);
    if (!wrong) wrong = read_files(&r, place->config);
    return wrong ? wrong : add_own(&r, place);
}

void flags_free(serve_flags *f)
{
    for (int i = 0; i < f->argc; i++) free(f->argv[i]);
    free(f->argv);
    *f = (serve_flags){0};
}
